# SPDX-License-Identifier: Apache-2.0
"""Bad arrays that NumPy cannot make, through DLPack: devices, huge and negative sizes, no memory, foreign types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import dtype_choices, numpy_dtype
from anyop.cases.placed import OUTPUT_FILL, place
from anyop.cases.sizes import Misfit, Sizes, product, shape_of
from anyop.cases.subject import Subject
from anyop.testing.dlpack import (
    CUDA,
    READ_ONLY,
    DlpackArray,
    NoCapsule,
    OldDlpackArray,
    dtype_code,
)
from anyop.testing.places import tensors_of, with_array, zeros
from anyop.testing.refusal import Good, Refusal, refuses, several

_TYPE, _VALUE = (TypeError,), (ValueError,)


def _name(dtype: np.dtype) -> str:
    return "bool" if dtype.kind == "b" else dtype.name


def _shown(good: Good, kind: str, label: str, errors, **fields: Any) -> Iterator[Refusal]:
    """Each tensor in turn as a DLPack object with these fields."""
    for param, shape, dtype, is_result in tensors_of(good):
        placed = zeros(param, shape, dtype, is_result)
        array = DlpackArray(placed.array, **{"dtype": dtype_code(_name(dtype)), **fields})
        watched = [placed] if is_result else []
        yield with_array(good, kind, param, label, errors, array, watched=watched)


def _several_tensors(s: Subject) -> bool:
    return len([p for p in s.tensors if not p["list"]]) + len(s.results) > 1


@refuses("other device", "device", _several_tensors)
def other_device(good: Good) -> Iterator[Refusal]:
    """One tensor elsewhere than the others. The first one decides, so the next is named."""
    names = tuple(p["name"] for p in good.subject.inputs + good.subject.results)
    if not several(good.subject):
        return
    for device in ((CUDA, 0), (CUDA, 3), (10, 0)):
        for refusal in _shown(good, "other device", f"on device {device}", _VALUE, device=device):
            refusal.argument = names
            yield refusal


@refuses("device without kernel", "device")
def no_kernel(good: Good) -> Iterator[Refusal]:
    """All tensors on a device that no kernel serves: a result cannot be made there, and nothing can run there."""
    for device in ((14, 0), (12, 3)):  # no kernel of anyop's is for these
        arguments, watched = good.arguments(), []
        for param, shape, dtype, is_result in tensors_of(good):
            placed = zeros(param, shape, dtype, is_result)
            watched += [placed] if is_result else []
            shown = [
                None
                if array is None
                else DlpackArray(array, device=device, dtype=dtype_code(_name(dtype)))
                for array in good.arrays(param["name"]) or [placed.array]
            ]
            arguments[param["name"]] = shown if param.get("list") else shown[0]
        yield Refusal(
            "device without kernel", None, f"results given, device {device}", (NotImplementedError,), arguments,
            watched=watched,
        )  # fmt: skip
        if good.subject.results:
            results = {param["name"] for param in good.subject.results}
            inputs = {name: value for name, value in arguments.items() if name not in results}
            first = next(iter(p["name"] for p in good.subject.results))
            call = _without_results(inputs)
            yield Refusal("device without kernel", first, f"on {device}", _VALUE, {}, call=call)


def _without_results(arguments: dict[str, Any]):
    return lambda function: function(**arguments)


@refuses("bytes overflow", "overflow of sizes")
def bytes_overflow(good: Good) -> Iterator[Refusal]:
    """Sizes whose product, or whose bytes, int64 does not hold; stride 0 needs no memory."""
    for huge in (2**61, 2**62, 2**63 - 1):
        yield from _huge_cases(good, huge)
    for param, shape, dtype, is_result in tensors_of(good):
        if len(shape) >= 1:
            placed = zeros(param, shape, dtype, is_result)
            array = DlpackArray(
                placed.array, shape=(2**62,) * max(len(shape), 2), strides=(0,) * max(len(shape), 2),
                dtype=dtype_code(_name(dtype)),
            )  # fmt: skip
            refusal = with_array(good, "bytes overflow", param, "of huge sizes", _VALUE, array)
            refusal.argument = tuple(p["name"] for p in good.subject.inputs + good.subject.results)
            yield refusal


def _huge_cases(good: Good, huge: int) -> Iterator[Refusal]:
    """One letter or group is huge in every tensor that has it."""
    sizes, symbols = good.case.point.sizes, good.drawer.symbols
    letters = [name for name in symbols["sizes"] if name not in symbols["element_sizes"]]
    for name in [*letters, *symbols["groups"]]:
        changed = Sizes(dict(sizes.values), dict(sizes.groups), sizes.elements, sizes.texts)
        if name in changed.groups:
            for join in symbols["joins"]:
                if name in join:
                    changed.groups.update(dict.fromkeys(join, (huge, 2)))
            changed.groups[name] = (huge, 2)
        elif name in letters:
            changed.values[name] = huge
        arguments, overflows = _stretched(good, changed)
        if overflows:
            names = tuple(p["name"] for p in good.subject.inputs + good.subject.results)
            label = f"{name}={huge}"
            yield Refusal("bytes overflow", names, label, _VALUE, arguments)


def _stretched(good: Good, sizes: Sizes) -> tuple[dict[str, Any], bool]:
    """Arguments of these sizes with stride 0, and whether one of them is too large for int64 for certain."""
    arguments, overflows = good.arguments(), False
    for param in good.subject.tensors:
        if param["list"]:
            continue
        try:
            shape = shape_of(param["shape"], sizes)
        except Misfit:
            return arguments, False
        dtype = numpy_dtype(good.choice.names[param["name"]])
        overflows |= product(shape) * dtype.itemsize >= 2**63
        one = np.zeros(1, dtype)
        if max((product(shape), *shape)) < 2**20:  # NumPy holds no empty array of huge sizes
            arguments[param["name"]] = np.zeros(shape, dtype)
        else:
            arguments[param["name"]] = DlpackArray(
                one, shape=shape, strides=(0,) * len(shape), dtype=dtype_code(_name(dtype))
            )
    return arguments, overflows


@refuses("negative size", "overflow of sizes")
def negative_size(good: Good) -> Iterator[Refusal]:
    """Sizes below zero in every dimension."""
    for param, shape, dtype, is_result in tensors_of(good):
        for axis in range(len(shape)):
            changed = (*shape[:axis], -shape[axis], *shape[axis + 1 :])
            placed = zeros(param, shape, dtype, is_result)
            array = DlpackArray(placed.array, shape=changed, dtype=dtype_code(_name(dtype)))
            refusal = with_array(good, "negative size", param, str(changed), _VALUE, array)
            refusal.argument = tuple(p["name"] for p in good.subject.inputs + good.subject.results)
            yield refusal


@refuses("impossible rank", "rank")
def impossible_rank(good: Good) -> Iterator[Refusal]:
    """A number of dimensions below 0 or far too large."""
    for ndim in (-1, -(2**31), 2**31 - 1, 33):
        yield from _shown(good, "impossible rank", f"ndim {ndim}", _VALUE, ndim=ndim)


@refuses("no storage", "alignment")
def no_storage(good: Good) -> Iterator[Refusal]:
    """Elements, and no memory for them."""
    yield from _shown(good, "no storage", "at NULL", _VALUE, data=None)


@refuses("byte_offset", "byte_offset", lambda s: any(_wide(s)))
def byte_offset(good: Good) -> Iterator[Refusal]:
    """An offset that leads between elements."""
    for param, shape, dtype, is_result in tensors_of(good):
        if dtype.itemsize > 1:
            placed = zeros(param, shape, dtype, is_result)
            array = DlpackArray(placed.array, byte_offset=1, dtype=dtype_code(_name(dtype)))
            watched = [placed] if is_result else []
            yield with_array(good, "byte_offset", param, "1", _VALUE, array, watched=watched)


def _wide(s: Subject) -> Iterator[str]:
    names = dtype_choices(s.metadata)[0].names
    for param in s.tensors:
        if numpy_dtype(names[param["name"]]).itemsize > 1:
            yield param["name"]


@refuses("vector or unknown type", "dtype sets and equalities")
def unknown_types(good: Good) -> Iterator[Refusal]:
    """Lanes, and codes and widths that DLPack or anyop do not have."""
    for dtype in (
        (2, 32, 4),
        (2, 32, 0),
        (99, 32, 1),
        (2, 31, 1),
        (3, 64, 1),
        (0, 128, 1),
        (17, 4, 1),
    ):
        label = f"code, bits, lanes {dtype}"
        yield from _shown(good, "vector or unknown type", label, _TYPE, dtype=dtype)


@refuses("DLPack version", "types")
def version(good: Good) -> Iterator[Refusal]:
    """A later DLPack whose struct is not known."""
    for major in (0, 2, 99):
        yield from _shown(good, "DLPack version", f"version {major}", _TYPE, major=major)


@refuses("immutable array", "immutable arrays", lambda s: bool(s.results or s.metadata["mutated"]))
def immutable(good: Good) -> Iterator[Refusal]:
    """Results that say they are read-only, or that cannot say that they are not (as JAX's arrays)."""
    for param, shape, dtype, is_result in tensors_of(good):
        if not (is_result or param.get("mutated")):
            continue
        forms: Any = ((DlpackArray, {"flags": READ_ONLY}), (OldDlpackArray, {}))
        for form, fields in forms:
            placed = place(shape, dtype, "offset", OUTPUT_FILL)
            array = form(placed.array, dtype=dtype_code(_name(dtype)), **fields)
            label, watched = form.__name__, [placed]
            yield with_array(good, "immutable array", param, label, _VALUE, array, watched=watched)


@refuses("no capsule", "types")
def no_capsule(good: Good) -> Iterator[Refusal]:
    """A __dlpack__ that returns something else."""
    for param, shape, dtype, _ in tensors_of(good):
        array = NoCapsule(np.zeros(shape, dtype), dtype=dtype_code(_name(dtype)))
        yield with_array(good, "no capsule", param, "returns 7", _TYPE, array)
