# SPDX-License-Identifier: Apache-2.0
"""Bad arrays: views that the layout excludes, strides and addresses between elements, masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import made_here, numpy_dtype
from anyop.cases.placed import KINDS, OUTPUT_FILL, Placed, layout_of, place, strides_of
from anyop.cases.sizes import Shape, product
from anyop.testing.places import tensors_of, with_array
from anyop.testing.refusal import Good, Refusal, refuses
from anyop.testing.refuse_dtypes import swappable

_TYPE, _VALUE = (TypeError,), (ValueError,)


def _strided(param: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    """Kinds of views that the layout forbids, for a shape in which they differ from a plain array."""
    plain = strides_of("plain", shape)
    for kind in KINDS["strided"]:
        if (
            kind in KINDS[layout_of(param)]
            or not shape
            or (kind.startswith("rows") and len(shape) < 2)
        ):
            continue
        differs = any(
            size > 1 and a != b for size, a, b in zip(shape, strides_of(kind, shape), plain)
        )
        last = shape[-1] == 1 or strides_of(kind, shape)[-1] == 1
        if differs and not (param["layout"] == "rows" and last):
            yield kind


@refuses(
    "not contiguous",
    "contiguity",
    lambda s: any(layout_of(p) != "strided" for p in s.tensors + s.results),
)
def not_contiguous(good: Good) -> Iterator[Refusal]:
    """Views that the layout of the schema excludes: refused by name, never read wrongly."""
    for param, shape, dtype, is_result in tensors_of(good):
        for kind in _strided(param, shape):
            placed = place(shape, dtype, kind, OUTPUT_FILL if is_result else 0)
            watched = [placed] if is_result else []
            array = placed.array
            yield with_array(good, "not contiguous", param, kind, _VALUE, array, watched=watched)


@refuses("strides within elements", "contiguity", lambda s: bool(swappable(s)))
def broken_strides(good: Good) -> Iterator[Refusal]:
    """Strides that are no multiple of the element, as of a field of packed records."""
    for param, shape, dtype, _ in tensors_of(good):
        if dtype.itemsize > 1 and product(shape) > 1:  # the stride of one element says nothing
            record = np.dtype(
                {"names": ["field"], "formats": [dtype], "itemsize": dtype.itemsize + 1}
            )
            array = np.zeros(shape, record)["field"]
            label = f"strides {array.strides}"
            yield with_array(good, "strides within elements", param, label, _VALUE, array)


@refuses("address", "alignment", lambda s: any(_possible_sizes(p) - {1} for p in s.tensors))
def misaligned(good: Good) -> Iterator[Refusal]:
    """Addresses between elements; and between multiples of [alignment]."""
    for param, shape, dtype, is_result in tensors_of(good):
        needed = param["alignment"] or min(dtype.itemsize, 8)
        for shift in {1, dtype.itemsize // 2, dtype.itemsize, needed // 2} - {0}:
            if shift % needed == 0:
                continue
            memory = np.full(
                4096 * 2 + 2 * dtype.itemsize * max(1, product(shape)), OUTPUT_FILL, np.uint8
            )
            offset = -memory.ctypes.data % 4096 + shift
            array = np.ndarray(shape, dtype, memory.data, offset)
            watched = [Placed(array, memory, offset, OUTPUT_FILL)] if is_result else []
            label = f"shifted by {shift} bytes"
            yield with_array(good, "address", param, label, _VALUE, array, watched=watched)


def _possible_sizes(param: Mapping[str, Any]) -> set[int]:
    return {numpy_dtype(name).itemsize for name in made_here(param["possible_dtypes"])}


@refuses("masked array", "types")
def masked(good: Good) -> Iterator[Refusal]:
    """A mask that would be ignored."""
    for param, shape, dtype, _ in tensors_of(good):
        for mask in (False, True):
            array = np.ma.array(np.zeros(shape, dtype), mask=mask)
            yield with_array(good, "masked array", param, f"masked {mask}", _TYPE, array)
