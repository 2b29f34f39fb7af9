# SPDX-License-Identifier: Apache-2.0
"""New tensors of Paddle where the glue does not make them: all without it, those on devices with it.

DLPack's exchange functions could, but Paddle keeps a table of what it took from DLPack. A thread that frees such a
tensor holds the table's lock while it may wait for Python's lock. Whoever asks for the first with the second in hand,
for a new tensor or to free one, may wait for ever.
"""

from typing import Any

import paddle
from paddle.base import core
from paddle.base.framework import _dygraph_tracer

_NAMES = {
    (0, 8): "INT8", (0, 16): "INT16", (0, 32): "INT32", (0, 64): "INT64",
    (1, 8): "UINT8", (1, 16): "UINT16", (1, 32): "UINT32", (1, 64): "UINT64",
    (2, 16): "FLOAT16", (2, 32): "FLOAT32", (2, 64): "FLOAT64", (4, 16): "BFLOAT16",
    (5, 64): "COMPLEX64", (5, 128): "COMPLEX128", (6, 8): "BOOL",
    (10, 8): "FLOAT8_E4M3FN", (12, 8): "FLOAT8_E5M2",
}  # fmt: skip
_DTYPES = {
    key: getattr(core.DataType, name)
    for key, name in _NAMES.items()
    if hasattr(core.DataType, name)
}
_SIGNED = {dtype: _DTYPES[0, bits] for (code, bits), dtype in _DTYPES.items() if code == 1}
del _SIGNED[_DTYPES[1, 8]]  # Paddle makes no others without a sign, but reads them
_CPU, _CUDA = 1, 2
_places: dict[tuple[int, int], Any] = {}  # by DLPack's type and number of the device
_flags = core.globals()
_empty, _full, _view = core.eager.ops.empty, core.eager.ops.full, core.eager.ops.view_dtype


def new(sizes: tuple[int, ...], code: int, bits: int, kind: int, number: int) -> Any:
    """A row-major tensor of DLPack's dtype on DLPack's device. None: only the exchange functions can make it."""
    # A thread of the executor gets its tracer when Python asks for it, and Paddle crashes where there is none.
    if _dygraph_tracer() is None:
        return None
    dtype, place = _DTYPES.get((code, bits)), _places.get((kind, number)) or _place(kind, number)
    if dtype is None or place is None:
        return None
    if dtype in _SIGNED:
        return _view(_empty(sizes, _SIGNED[dtype], place), dtype)
    if _flags["FLAGS_check_nan_inf"]:  # looks into new memory, too
        return _full(sizes, 0.0, dtype, place)
    return _empty(sizes, dtype, place)


def _place(kind: int, number: int) -> Any:
    if kind == _CPU:
        place = paddle.CPUPlace()
    elif kind == _CUDA:
        place = paddle.CUDAPlace(number)
    else:
        return None
    _places[kind, number] = place
    return place
