# SPDX-License-Identifier: Apache-2.0
"""Objects that speak DLPack with any field set to anything: what a faulty or foreign framework would hand over."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import NAMES
from anyop.cases.sizes import Shape

CPU, CUDA = 1, 2
READ_ONLY = 1  # of the flags
_CODES = {"bool": 6, "uint": 1, "int": 0, "bfloat": 4, "float": 2, "complex": 5}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_deleted = [0]


@_Destructor
def _count_deletion(_capsule: int) -> None:
    _deleted[0] += 1


_DESTRUCTOR = ctypes.cast(_count_deletion, ctypes.c_void_p)


def deletions() -> int:
    """How many capsules of this module are gone."""
    return _deleted[0]


def dtype_code(name: str) -> tuple[int, int, int]:
    """DLPack's code, bits and lanes."""
    if name.startswith("float8"):
        return (10 if name == "float8_e4m3fn" else 12), 8, 1
    stem = name.rstrip("0123456789")
    return _CODES[stem], 8 if name == "bool" else int(name[len(stem) :]), 1


class DlpackArray:
    """Shows an array through __dlpack__ (version 1), with fields of the tensor replaced."""

    def __init__(
        self,
        array: np.ndarray,
        *,
        shape: Shape | None = None,
        strides: tuple[int, ...] | None = None,
        dtype: tuple[int, int, int] | None = None,
        device: tuple[int, int] = (CPU, 0),
        data: int | None = -1,
        byte_offset: int = 0,
        flags: int = 0,
        major: int = 1,
        ndim: int | None = None,
    ) -> None:
        shape = array.shape if shape is None else shape
        if strides is None and shape == array.shape:
            strides = tuple(step // array.itemsize for step in array.strides)
        self.array = array  # keeps the memory
        name = array.dtype.name
        self.dtype = dtype or dtype_code(name if name in NAMES else "uint8")
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = (ctypes.c_int64 * max(len(shape), 1))(*strides) if strides else None
        self.device, self.byte_offset = device, byte_offset
        self.data = array.ctypes.data if data == -1 else data
        self.flags, self.major = flags, major
        self.ndim = len(shape) if ndim is None else ndim
        self._managed: Any = None  # what capsules point to, as long as the array lives

    def _fill(self, tensor: _Tensor) -> None:
        tensor.data, tensor.byte_offset, tensor.ndim = self.data, self.byte_offset, self.ndim
        tensor.device_type, tensor.device_id = self.device
        tensor.code, tensor.bits, tensor.lanes = self.dtype
        if self.shape is not None:
            tensor.shape = ctypes.addressof(self.shape)
        if self.strides is not None:
            tensor.strides = ctypes.addressof(self.strides)

    def _capsule(self, kind: type[ctypes.Structure], name: bytes, **fields: int) -> Any:
        if self._managed is None:  # filled once: a view of a device's memory is shown in many calls
            self._managed = kind(**fields)
            self._fill(self._managed.tensor)
        return _python.PyCapsule_New(ctypes.addressof(self._managed), name, _DESTRUCTOR)

    def __dlpack__(self, *, max_version: Any = None, stream: Any = None, **_: Any) -> Any:
        return self._capsule(
            _Versioned, b"dltensor_versioned", major=self.major, minor=0, flags=self.flags
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldDlpackArray(DlpackArray):
    """The same as before DLPack 1.0: without version and flags."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self._capsule(_Managed, b"dltensor")


class NoCapsule(DlpackArray):
    """Returns something else."""

    def __dlpack__(self, **_: Any) -> Any:
        return 7


class RaisingDlpack(DlpackArray):
    """Fails on its own."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("this array is busy")
