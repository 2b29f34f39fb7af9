# SPDX-License-Identifier: Apache-2.0
"""Arrays inside larger memory: views of every layout, with bytes before, behind and between that nobody may touch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyop.cases.sizes import Shape, product

GUARD_BYTES = 256
OUTPUT_FILL = 0xA5
INPUT_FILL = 0xFF  # NaN in every floating dtype: an element read from outside spoils the result
_ALIGNED = 4096

# By [layouts] of the schema; "plain" is an array of its own, so that ASan sees its ends.
KINDS = {
    "contiguous": ("plain", "offset"),
    "rows": ("plain", "offset", "rows", "rows_back", "rows_turned", "rows_zero"),
    "dense": ("plain", "offset", "turned"),
    "strided": (
        "plain", "offset", "rows", "rows_back", "rows_turned", "rows_zero", "turned", "steps", "back", "last_zero",
    ),
}  # fmt: skip
_INPUTS_ONLY = ("rows_zero", "last_zero")  # elements share memory


def layout_of(param: Mapping[str, Any]) -> str:
    """The layout that an argument may have on the CPU: any, where the operator copies what its kernel does not take."""
    return "strided" if param.get("copied") else param["layout"]


def kinds_of(layout: str, ndim: int, written: bool) -> list[str]:
    """The kinds of view that a layout allows and that differ from a plain array."""
    found = []
    for kind in KINDS[layout]:
        needs = 0 if kind in ("plain", "offset") else 2 if kind.startswith("rows") else 1
        if ndim >= needs and not (written and kind in _INPUTS_ONLY):
            found.append(kind)
    return found


def strides_of(kind: str, shape: Shape) -> list[int]:
    """Strides in elements."""
    steps = _c_strides(shape)
    if kind in ("plain", "offset") or not shape:
        return steps
    wide = _c_strides((*shape[:-1], shape[-1] + 3))
    if kind == "rows":
        return wide
    if kind == "rows_back":
        return [-wide[0], *wide[1:]]
    if kind == "rows_turned":
        turned = _c_strides((*shape[-2::-1], shape[-1] + 3))
        return [*turned[-2::-1], 1]
    if kind == "rows_zero":
        return [0, *steps[1:]]
    if kind == "turned":
        return _c_strides(shape[::-1])[::-1]
    if kind == "steps":
        return [2 * step for step in _c_strides(tuple(2 * size for size in shape))]
    if kind == "back":
        return [-step for step in steps]
    assert kind == "last_zero", kind
    return [*steps[:-1], 0]


def _c_strides(shape: Shape) -> list[int]:
    return [product(shape[at + 1 :]) for at in range(len(shape))]


@dataclass
class Placed:
    """An array and the memory it lies in."""

    array: np.ndarray
    memory: np.ndarray  # bytes
    offset: int  # of element (0, ..., 0)
    fill: int

    def outside(self) -> np.ndarray:
        """The bytes of memory that belong to no element."""
        inside = np.zeros(len(self.memory), bool)
        a = self.array
        np.ndarray((*a.shape, a.itemsize), bool, inside.data, self.offset, (*a.strides, 1))[...] = (
            True
        )
        return self.memory[~inside]

    def is_guarded(self) -> bool:
        """Whether every byte outside is as it was."""
        return bool((self.outside() == self.fill).all())

    def is_untouched(self) -> bool:
        """Whether every byte, also of the elements, is as it was filled."""
        return bool((self.memory == self.fill).all())


def place(
    shape: Shape, dtype: np.dtype, kind: str = "offset", fill: int = OUTPUT_FILL, alignment: int = 0
) -> Placed:
    """An array of this layout in memory that is filled with one byte; its address is a multiple of alignment."""
    strides = [step * dtype.itemsize for step in strides_of(kind, shape)]
    reaches = [(size - 1) * step for size, step in zip(shape, strides)] if 0 not in shape else []
    low, high = sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0)
    align = max(alignment, dtype.itemsize)
    bytes_needed = 2 * GUARD_BYTES + _ALIGNED + high - low + 2 * align
    memory = np.full(bytes_needed, fill, np.uint8)
    first = (
        -memory.ctypes.data % _ALIGNED
    )  # aligned to a page, so that offset below sets the alignment
    offset = first + -(-(GUARD_BYTES - low) // align) * align + (align if kind != "plain" else 0)
    memory = memory[: offset + high + dtype.itemsize + GUARD_BYTES]
    array = np.ndarray(shape, dtype, memory.data, offset, tuple(strides))
    return Placed(array, memory, offset, fill)


def place_values(values: np.ndarray, kind: str, alignment: int = 0) -> Placed:
    """A copy of values with this layout. Along dimensions of stride 0 the first values are repeated."""
    if kind == "plain" and alignment <= values.itemsize:
        array = np.array(values, order="C", copy=True)
        return Placed(array, array.reshape(-1).view(np.uint8), 0, INPUT_FILL)
    placed = place(values.shape, values.dtype, kind, INPUT_FILL, alignment)
    if kind == "rows_zero":
        values = np.broadcast_to(values[:1], values.shape)
    elif kind == "last_zero":
        values = np.broadcast_to(values[..., :1], values.shape)
    placed.array[...] = values
    return placed


def raw(array: np.ndarray) -> bytes:
    """The elements' bytes in C order: equal for equal bits, NaN included."""
    return array.tobytes()
