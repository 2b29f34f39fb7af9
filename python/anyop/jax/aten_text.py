# SPDX-License-Identifier: Apache-2.0
"""A call of ATen as the text that bindings/jax/xla_aten_call.h reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's, tuples as lists; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, (np.number, np.bool_)) else value


def words(value: Any) -> str:
    """The words of a plain value. Raises TypeError, ValueError."""
    if value is None:
        return "n"
    if isinstance(value, list):
        return " ".join(["[", *map(words, value), "]"])
    if isinstance(value, bool):
        return f"b{int(value)}"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError("is out of the range of int64")
        return f"i{value:d}"
    if isinstance(value, float):
        return f"f{_bits(value)}"
    if isinstance(value, complex):
        return f"c{_bits(value.real)},{_bits(value.imag)}"
    if isinstance(value, str):
        return f"s{len(value.encode())}:{value}"
    raise TypeError(f"is a {type(value).__qualname__}, which no compiled program can hold")


def _bits(value: float) -> int:
    """All of it: NaN's payload and the sign of zero too."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def name_of(value: Any) -> str:
    """Of a dtype, layout or memory format: torch's object, a name, and dtypes as NumPy takes them. Raises TypeError."""
    if isinstance(value, str):
        return value
    text = str(value)
    return text.removeprefix("torch.") if text.startswith("torch.") else np.dtype(value).name


def call_text(name: str, arguments: Sequence[str], results: Sequence[str]) -> str:
    """The attribute _aten."""
    return " ".join([name, *arguments, "->", *results])
