# SPDX-License-Identifier: Apache-2.0
"""Expressions of sizes as C over the argument struct, with the arithmetic of anyop/forms/size_math.h."""

from __future__ import annotations

from ..schema.expressions import Expr
from ..schema.fields import numel_field

_FUNCTIONS = {
    "+": "AnyopSizeAdd", "-": "AnyopSizeSubtract", "*": "AnyopSizeMultiply",
    "//": "AnyopSizeDivide", "ceildiv": "AnyopSizeCeilDivide", "%": "AnyopSizeRemainder",
    "min": "AnyopSizeMin", "max": "AnyopSizeMax",
}  # fmt: skip


def c_expression(expression: Expr) -> str:
    """The value as int64_t; letters are fields."""
    if isinstance(expression, int):
        return str(expression)
    if isinstance(expression, str):
        return f"args->{expression}"
    name, *parts = expression
    if name == "numel":
        return f"args->{numel_field(parts[0])}"
    return f"{_FUNCTIONS[name]}({', '.join(map(c_expression, parts))})"
