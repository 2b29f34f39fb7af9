# SPDX-License-Identifier: Apache-2.0
"""A parameter of an operator, argument or result, and the reading of its default."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .dtype_rules import DtypeRule
from .dtypes import dtype_name
from .shapes import Shape
from .source import Mistake

KINDS = ("Tensor", "int", "float", "bool", "str", "ScalarType")
_INT64 = range(-(2**63), 2**63)


class Missing:
    """Stands for the default of a parameter that has none (None is a default)."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass
class Param:
    """An argument or a result. The second half is filled from the sections of the file."""

    name: str
    kind: str  # one of KINDS
    optional: bool = False  # T?, T[]?
    is_list: bool = False
    optional_elements: bool = False  # Tensor?[]
    fixed_count: int | None = None  # int[2]
    mutated: bool = False  # Tensor(a!)
    keyword_only: bool = False
    output: bool = False
    default: Any = MISSING

    about: str = ""
    shape: Shape | None = None
    dtypes: DtypeRule | None = None
    possible: tuple[str, ...] = ()  # every dtype it can have
    alike: bool = False  # a list whose tensors have one dtype, which a result takes
    layout: str = "contiguous"
    copied: bool = False  # where it has another layout
    alignment: int = 0  # bytes, 0: that of an element
    inplace: bool = False
    number: bool = False  # a Python number may stand for it
    expanded: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.kind == "Tensor"

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING


def unquoted(text: str) -> Iterator[tuple[int, str, int]]:
    """Place, character and depth of brackets behind it, of every character outside quotes."""
    depth, quote, escaped = 0, "", False
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([") - (char in ")]")
            yield at, char, depth


def split(text: str) -> list[str]:
    """The parts between commas that stand outside brackets and quotes."""
    commas = [at for at, char, depth in unquoted(text) if char == "," and depth == 0]
    edges = [-1, *commas, len(text)]
    return [text[a + 1 : b].strip() for a, b in zip(edges[:-1], edges[1:], strict=True)]


def parse_default(param: Param, text: str) -> Any:
    """The value of a default, checked against the type."""
    if text == "None":
        if not param.optional:
            raise _bad_default(
                param, text, f"write '?' behind the type to allow None: {param.kind}?"
            )
        return None
    if param.is_tensor:
        raise _bad_default(param, text, "a tensor's only default is None")
    if not param.is_list:
        value = _scalar(param, text, text)
        if param.optional and (value != value or value == -(2**63)):
            raise _bad_default(param, text, "this value stands for None in the table: use another")
        return value
    if not (text.startswith("[") and text.endswith("]")):
        if param.fixed_count is None:
            raise _bad_default(param, text, f"write [{text}]")
        return [_scalar(param, text, text)] * param.fixed_count
    parts = split(text[1:-1]) if text[1:-1].strip() else []
    if param.fixed_count is not None and len(parts) != param.fixed_count:
        raise _bad_default(param, text, f"give {param.fixed_count} values, or one that is repeated")
    return [_scalar(param, part, text) for part in parts]


def _scalar(param: Param, text: str, whole: str) -> Any:
    if param.kind == "ScalarType":
        return dtype_name(text.removeprefix("torch."))
    if param.kind == "bool" and text in ("True", "False", "true", "false"):
        return text.lower() == "true"
    if param.kind == "float" and re.fullmatch(r"[+-]?(inf|nan)", text):
        return float(text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise _bad_default(param, whole, "quote text, write numbers plainly") from None
    if param.kind == "int" and type(value) is int and value in _INT64:
        return value
    if (
        param.kind == "float"
        and type(value) in (int, float)
        and abs(value) < 2**1000
        and math.isfinite(value)
    ):
        return float(value)
    if param.kind == "str" and type(value) is str and "\0" not in value and _is_utf8(value):
        return value
    raise _bad_default(param, whole, "correct the default or the type")


def _is_utf8(text: str) -> bool:
    """Whether it has no half of a surrogate pair, which a default can write by its number."""
    return text == text.encode("utf-8", "ignore").decode()


def _bad_default(param: Param, text: str, fix: str) -> Mistake:
    kind = param.kind + ("[]" if param.is_list else "") + ("?" if param.optional else "")
    return Mistake(f"argument '{param.name}' has the default {text}", f"one of type {kind}", fix)
