# SPDX-License-Identifier: Apache-2.0
"""Element types: NumPy's dtype of each name, and every combination of them that an operator allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from anyop._paths import is_installed

_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)  # fmt: skip
_WIDE_UNSIGNED = {"uint16", "uint32", "uint64"}
_INTEGERS = ("int8", "int16", "int32", "int64")


@cache
def has_ml_dtypes() -> bool:
    """Whether NumPy can have arrays of bfloat16 and float8 here."""
    return is_installed("ml_dtypes")


def made_here(names: Iterable[str]) -> list[str]:
    """Those dtypes of which NumPy can have arrays here."""
    return [name for name in names if name not in _EXTENDED or has_ml_dtypes()]


@cache
def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of a name, with ml_dtypes for those that NumPy lacks."""
    if name in _EXTENDED:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def is_floating(name: str) -> bool:
    """Whether results of this dtype are compared with a tolerance."""
    return "float" in name or "complex" in name


def promote(a: str, b: str) -> str | None:
    """torch.promote_types; None where it refuses."""
    if a == b:
        return a
    if a.startswith("float8") or b.startswith("float8"):
        return None
    kinds = {name: _kind(name) for name in (a, b)}
    if {a, b} & _WIDE_UNSIGNED and 2 not in kinds.values():
        return None  # torch promotes these with floats only
    if kinds[a] != kinds[b]:
        low, high = sorted((a, b), key=lambda name: kinds[name])
        return "complex128" if (low, high) == ("float64", "complex64") else high
    if kinds[a] == 1:
        return _promote_integers({a, b})
    if kinds[a] == 3:
        return "complex128"
    return "float32" if {a, b} == {"float16", "bfloat16"} else max(a, b, key=NAMES.index)


def _kind(name: str) -> int:
    if name == "bool":
        return 0
    return 3 if name.startswith("complex") else 2 if "float" in name else 1


def _promote_integers(names: set[str]) -> str:
    if names == {"uint8", "int8"}:
        return "int16"
    return max(names - {"uint8"}, key=_INTEGERS.index)


@dataclass(frozen=True)
class DtypeChoice:
    """One combination: dtypes of tensor arguments and values of ScalarType arguments (None: not given)."""

    names: Mapping[str, str | None]

    def __str__(self) -> str:
        values = set(self.names.values())
        if len(values) == 1:
            return str(*values)
        return ",".join(f"{name}={dtype}" for name, dtype in self.names.items())

    @property
    def is_uniform(self) -> bool:
        """All tensors have the same dtype."""
        return len({dtype for dtype in self.names.values() if dtype}) <= 1


def allowed(param: Mapping[str, Any], names: Mapping[str, str | None]) -> list[str]:
    """The dtypes that a tensor may have when those before it have these; of a new result the first."""
    rule = param["dtypes"]
    if rule["rule"] == "promote":
        a, b = rule["of"]  # an argument, and another or a dtype
        promoted = promote(names[a], names[b] if b in names or b not in NAMES else b)
        return [promoted] if promoted else []
    if rule["rule"] == "first_given":
        first, second = rule["of"]
        return [names.get(first) or names[second]]
    if rule["rule"] == "attribute":
        return [names.get(rule["attribute"]) or names[rule["otherwise"]]]
    same = [names[rule["same_as"]]] if rule["same_as"] else []
    return [*same, *(name for name in rule["names"] if name not in same)]


def dtype_choices(metadata: Mapping[str, Any]) -> list[DtypeChoice]:
    """Every combination that the operator's dtype rules allow, in the order in which they are listed."""
    return [DtypeChoice(names) for names in _extend({}, metadata["inputs"], metadata["results"])]


def choices_here(metadata: Mapping[str, Any]) -> list[DtypeChoice]:
    """Those of which NumPy can have arrays here."""
    every = dtype_choices(metadata)
    given = [[name for name in choice.names.values() if name] for choice in every]
    return [choice for choice, names in zip(every, given) if made_here(names) == names]


def _extend(names: dict, params: list, results: list) -> Iterator[dict]:
    if not params:
        try:
            if all(allowed(param, names) for param in results):
                yield names
        except KeyError:  # a result like an argument that this choice leaves out
            return
        return
    param, rest = params[0], params[1:]
    if param["kind"] == "Tensor":
        options: list[str | None] = list(allowed(param, names))
    elif param["kind"] == "ScalarType" and not param["list"]:
        options = [*([None] if param["optional"] else []), *param["possible_dtypes"]]
        if not options:
            raise LookupError(f"[dtypes] must list what {param['name']} may be")
    else:
        yield from _extend(names, rest, results)
        return
    for option in options:
        yield from _extend({**names, param["name"]: option}, rest, results)


def result_dtypes(
    metadata: Mapping[str, Any], names: Mapping[str, str | None]
) -> dict[str, list[str]]:
    """By result: the dtypes that out= may have, the one of a new result first."""
    known, found = dict(names), {}
    for param in metadata["results"]:
        found[param["name"]] = allowed(param, known)
        known[param["name"]] = found[param["name"]][0]
    return found


def pairs(names: tuple[str, ...] = NAMES) -> Iterator[tuple[str, str]]:
    """All ordered pairs of dtypes."""
    return itertools.product(names, names)
