# SPDX-License-Identifier: Apache-2.0
"""Bad arrays: dtypes that the schema forbids, alone or together, foreign ones and foreign byte order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import NAMES, allowed, has_ml_dtypes, made_here, numpy_dtype
from anyop.cases.subject import Subject
from anyop.testing.places import tensors_of, with_array, zeros
from anyop.testing.refusal import Good, Refusal, refuses

_TYPE = (TypeError,)
_FOREIGN = ("O", "U3", "S3", "M8[s]", "m8[s]", "V4", "g", "G", "i4,f4")
_FOREIGN_EXTENDED = (
    "int4", "uint4", "int2", "uint2", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
)  # fmt: skip


def _first_misfit(subject: Subject, names: Mapping[str, str | None]) -> str | None:
    """The first tensor whose dtype does not follow from those before it."""
    known: dict[str, str | None] = {}
    for param in subject.inputs:
        name = param["name"]
        if param["kind"] == "Tensor" and names[name] not in allowed(param, known):
            return name
        if name in names:
            known[name] = names[name]
    for param in subject.results:
        if not (found := allowed(param, known)):
            return param["name"]
        known[param["name"]] = found[0]
    return None


def _dtype_changes(good: Good) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(argument, dtype, misfit) for every dtype that spoils the combination."""
    for param in good.subject.tensors:
        for dtype in made_here(NAMES):
            names = {**good.choice.names, param["name"]: dtype}
            if misfit := _first_misfit(good.subject, names):
                yield param, dtype, misfit


def _dtype_refusals(good: Good, kind: str, forbidden: bool) -> Iterator[Refusal]:
    for param, dtype, misfit in _dtype_changes(good):
        if (dtype not in param["possible_dtypes"]) != forbidden:
            continue
        name, shape = param["name"], good.shapes[param["name"]]
        array: Any = (
            [np.zeros(s, numpy_dtype(dtype)) for s in shape]
            if param["list"]
            else np.zeros(shape, numpy_dtype(dtype))
        )
        arguments = good.arguments(**{name: array})
        yield Refusal(kind, misfit, f"{name} of {dtype}", _TYPE, arguments)


def _some_dtype(s: Subject, forbidden: bool) -> bool:
    if forbidden:
        return any(len(p["possible_dtypes"]) < len(NAMES) for p in s.tensors)
    rules = [p["dtypes"] for p in s.tensors]
    return any(
        r["rule"] != "one_of" or (r["same_as"] and len(p["possible_dtypes"]) > 1)
        for p, r in zip(s.tensors, rules)
    )


@refuses("forbidden dtype", "dtype sets and equalities", lambda s: _some_dtype(s, True))
def forbidden_dtype(good: Good) -> Iterator[Refusal]:
    """Every dtype that an argument can never have."""
    yield from _dtype_refusals(good, "forbidden dtype", True)


@refuses("unequal dtype", "dtype sets and equalities", lambda s: _some_dtype(s, False))
def unequal_dtype(good: Good) -> Iterator[Refusal]:
    """Dtypes that an argument can have, but not beside those of the others."""
    yield from _dtype_refusals(good, "unequal dtype", False)


@refuses("output dtype", "dtype sets and equalities", lambda s: bool(s.results))
def output_dtype(good: Good) -> Iterator[Refusal]:
    """A result of another dtype is given."""
    names = dict(good.choice.names)
    for param in good.subject.results:
        fitting = allowed(param, names)
        names[param["name"]] = fitting[0]
        for dtype in made_here(NAMES):
            if dtype not in fitting:
                shape = good.result_shapes[param["name"]]
                placed = zeros(param, shape, numpy_dtype(dtype), True)
                more = {"watched": [placed]}
                yield with_array(good, "output dtype", param, dtype, _TYPE, placed.array, **more)


def _foreign_dtypes() -> Iterator[np.dtype]:
    yield from map(np.dtype, _FOREIGN)
    if not has_ml_dtypes():
        return
    import ml_dtypes

    for name in _FOREIGN_EXTENDED:
        if hasattr(ml_dtypes, name):
            yield np.dtype(getattr(ml_dtypes, name))


@refuses("foreign dtype", "dtype sets and equalities")
def foreign_dtype(good: Good) -> Iterator[Refusal]:
    """Objects, text, times, records, long double, and the types of ml_dtypes that no operator knows."""
    for param, shape, _, _ in tensors_of(good):
        for dtype in _foreign_dtypes():
            array = np.zeros(shape, dtype)
            yield with_array(good, "foreign dtype", param, f"of {dtype}", _TYPE, array)


@refuses("byte order", "dtype sets and equalities", lambda s: bool(swappable(s)))
def byte_order(good: Good) -> Iterator[Refusal]:
    """The right dtype in the other byte order."""
    for param, shape, dtype, is_result in tensors_of(good):
        dtype = _other_order(dtype) or _other_order(_first_swappable(param))
        if dtype:
            placed = zeros(param, shape, dtype, is_result)
            watched = [placed] if is_result else []
            label, array = f"of {dtype}", placed.array
            yield with_array(good, "byte order", param, label, _TYPE, array, watched=watched)


def _first_swappable(param: Mapping[str, Any]) -> np.dtype | None:
    dtypes = [numpy_dtype(name) for name in made_here(param["possible_dtypes"])]
    return next((dtype for dtype in dtypes if _other_order(dtype)), None)


def _other_order(dtype: np.dtype | None) -> np.dtype | None:
    if dtype is None or dtype.itemsize == 1 or dtype.kind not in "iufc":
        return None
    return dtype.newbyteorder()


def swappable(s: Subject) -> list[str]:
    """Tensors that can have elements of several bytes."""
    tensors = [p for p in s.tensors if not p["list"]] + s.results
    return [p["name"] for p in tensors if _first_swappable(p)]
