# SPDX-License-Identifier: Apache-2.0
"""Whether values are, to the letter, of the types of a schema; torch.ops takes more, as a set for a list."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import torch

OBJECTS = {
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "Generator": torch.Generator,
}
OBJECTS |= {"ScalarType": torch.dtype, "Device": torch.device, "str": str}


def is_bool(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not is_bool(value) and -(2**63) <= value < 2**63


def fits(value: Any, text: str) -> bool:
    """text: as torch prints a type, "Optional[List[int]]"."""
    if text.startswith("Optional["):
        return value is None or fits(value, text[len("Optional[") : -1])
    if text.startswith("List["):
        inside = text[len("List[") : -1]
        return isinstance(value, (list, tuple)) and all(fits(item, inside) for item in value)
    if text == "Tensor":
        return value is None or isinstance(value, torch.Tensor) or is_number(value)
    if text in OBJECTS:
        return isinstance(value, OBJECTS[text])
    tests = {"int": is_int, "bool": is_bool, "float": is_real, "number": is_number}
    return tests[text](value) if text in tests else False


def is_real(value: Any) -> bool:
    return is_int(value) or isinstance(value, (float, np.floating))


def is_number(value: Any) -> bool:
    return is_real(value) or is_bool(value) or isinstance(value, (complex, np.complexfloating))


def odd_values(schema, args: tuple, kwargs: dict) -> list[tuple[Any, str, int | None]]:
    """Values that are not of their parameter's type, each with that type and the count of a list."""
    given = {**dict(zip((a.name for a in schema.arguments), args)), **kwargs}
    return [
        (given[a.name], str(a.real_type), a.N)
        for a in schema.arguments
        if a.name in given and not fits(given[a.name], str(a.real_type))
    ]


def is_widened(value: Any, text: str, count: int | None) -> bool:
    """What anyop takes and torch.ops does not: a number for SymInt[N], as torch's Python functions; a seed; sizes
    in an array.
    """
    if isinstance(value, torch.Tensor):
        return "List[int]" in text and value.dim() == 1
    return is_int(value) and (count is not None or "Generator" in text)
