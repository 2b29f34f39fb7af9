# SPDX-License-Identifier: Apache-2.0
"""Element types, and torch's promotion between them."""

from __future__ import annotations

from .source import Mistake, listed, nearest

# In the order of AnyopDtype in anyop/kernel.h: the position is the number.
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
)  # fmt: skip
FLOATING = tuple(name for name in DTYPES if "float" in name or "complex" in name)
_WIDE_UNSIGNED = ("uint16", "uint32", "uint64")


def dtype_name(name: str) -> str:
    """`name` when it is an element type."""
    if name not in DTYPES:
        raise Mistake(
            f"unknown dtype '{name}'",
            f"one of {listed(DTYPES)}",
            nearest(name, DTYPES, "use one of these"),
        )
    return name


def _category(name: str) -> int:
    if name == "bool":
        return 0
    return 3 if name.startswith("complex") else 2 if "float" in name else 1


def promote(a: str, b: str) -> str | None:
    """The dtype of a result of both, as torch.promote_types; None where torch refuses."""
    if a == b:
        return a
    if a.startswith("float8") or b.startswith("float8"):
        return None
    low, high = sorted((a, b), key=lambda name: (_category(name), DTYPES.index(name)))
    if low in _WIDE_UNSIGNED or high in _WIDE_UNSIGNED:
        return high if _category(high) == 2 else None  # with a floating dtype only
    if _category(low) != _category(high):
        return "complex128" if (low, high) == ("float64", "complex64") else high
    if (low, high) == ("float16", "bfloat16"):
        return "float32"
    return "int16" if (low, high) == ("uint8", "int8") else high
