# SPDX-License-Identifier: Apache-2.0
"""What holds where an operator file states nothing: a schema and shapes are enough."""

from __future__ import annotations

from pathlib import Path

from .dtype_rules import DtypeRule
from .dtypes import FLOATING
from .params import Param

DTYPE = "float32"  # of the first tensor argument
SUFFIXES = {"cpu": ".cc", "cuda": ".cu", "hip": ".hip", "mlu": ".mlu", "triton": "_triton.py"}

# Bits behind the binary point of each floating type: neighbours near 1 are 2**-bits apart.
_BITS = {
    "float16": 10, "bfloat16": 7, "float32": 23, "float64": 52, "complex64": 23, "complex128": 52,
    "float8_e4m3fn": 3, "float8_e5m2": 2,
}  # fmt: skip
_ROUNDED_ONCE = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def brief(namespace: str, name: str) -> str:
    """The first sentence of the docstring."""
    return f"The operator {name} of {namespace}."


def kernels(file: Path, name: str) -> dict[str, str]:
    """Backend -> the file of the operator's name that lies beside it."""
    beside = {backend: f"{name}{suffix}" for backend, suffix in SUFFIXES.items()}
    return {backend: text for backend, text in beside.items() if (file.parent / text).is_file()}


def tolerance(dtype: str) -> float:
    """Of the standard tests: 16 steps of the type near 1, or 2 of one of 16 bits and less.

    Narrow types are computed in float32 and rounded at the end; in wide ones the roundings of a
    row's sum add up.
    """
    return (2 if dtype in _ROUNDED_ONCE else 16) * 2.0 ** -_BITS[dtype]


def dtype_rule(param: Param, params: list[Param]) -> DtypeRule:
    """The dtype of the first tensor argument that every call gives; that one, and any before it: float32."""
    given = [p for p in params if p.is_tensor and not p.output and not p.optional and not p.is_list]
    first = given[0] if given else None
    if first is None or params.index(param) <= params.index(first):
        return DtypeRule(names=(DTYPE,))
    return DtypeRule(same_as=first.name)


def compared(params: list[Param]) -> list[str]:
    """The floating dtypes of all that an operator writes."""
    written = [param for param in params if param.output or param.mutated]
    return [name for name in FLOATING if any(name in param.possible for param in written)]
