# SPDX-License-Identifier: Apache-2.0
"""CuPy's current stream and new arrays, for the C++ binding. Imported when the first CuPy array arrives."""

from __future__ import annotations

import cupy


def current_stream(device_id: int) -> int:
    """The address of the stream that is current for the device in this thread; 0 is the default stream."""
    return cupy.cuda.get_current_stream(device_id).ptr


def empty(device_id: int, dtype: str, shape: tuple[int, ...]) -> tuple[cupy.ndarray, int]:
    """A new array by CuPy's allocator on its current stream, and the address of its memory.

    Raises TypeError for a dtype that CuPy has not, cupy.cuda.memory.OutOfMemoryError when memory is short.
    """
    with cupy.cuda.Device(device_id):
        array = cupy.empty(shape, _dtype(dtype))
    return array, array.data.ptr


def _dtype(name: str):
    if hasattr(cupy, name):
        return getattr(cupy, name)
    import ml_dtypes  # bfloat16 and float8, where CuPy takes them

    return getattr(ml_dtypes, name)
