# SPDX-License-Identifier: Apache-2.0
"""The structs of the ATen glue's C ABI, as ctypes has them."""

from __future__ import annotations

import ctypes as c

OWNER = c.CFUNCTYPE(None, c.c_void_p)


class View(c.Structure):
    """AnyopTensor."""

    _fields_ = [
        ("data", c.c_void_p),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


class Memory(c.Structure):
    """AnyopAtenMemory."""

    _fields_ = [
        ("tensor", View),
        ("flags", c.c_uint32),
        ("reserved", c.c_uint32),
        ("owner", c.c_void_p),
        ("retain", OWNER),
        ("release", OWNER),
    ]


class _As(c.Union):
    _fields_ = [("i", c.c_int64), ("f", c.c_double), ("p", c.c_void_p)]


class _More(c.Union):
    _fields_ = [("count", c.c_int64), ("imag", c.c_double)]


class Value(c.Structure):
    """AnyopAtenValue."""

    _fields_ = [("tag", c.c_int32), ("reserved", c.c_uint32), ("as_", _As), ("more", _More)]


class Type(c.Structure):
    """AnyopAtenType."""

    _fields_ = [("kind", c.c_uint8), ("flags", c.c_uint8), ("alias", c.c_int16)]


class Options(c.Structure):
    """AnyopAtenOptions."""

    _fields_ = [
        ("size", c.c_uint32),
        ("flags", c.c_uint32),
        ("stream", c.c_void_p),
        ("device_id", c.c_int32),
        ("reserved", c.c_uint32),
    ]


class Table(c.Structure):
    """AnyopTorchAtenGlue."""

    _fields_ = [
        ("size", c.c_uint32),
        ("version", c.c_uint32),
        ("torch_version", c.c_char_p),
        ("find", c.CFUNCTYPE(c.c_void_p, c.c_char_p, c.c_char_p)),
        (
            "call",
            c.CFUNCTYPE(
                c.c_int32,
                c.c_void_p,
                c.POINTER(Type),
                c.c_int32,
                c.POINTER(Value),
                c.POINTER(Value),
                c.c_int32,
                c.POINTER(Options),
                c.c_char_p,
                c.c_int64,
            ),
        ),
        ("release", c.CFUNCTYPE(None, c.c_void_p)),
        (
            "view",
            c.CFUNCTYPE(
                c.c_int32,
                c.POINTER(c.c_void_p),
                c.POINTER(View),
                c.POINTER(c.c_uint32),
                c.c_char_p,
                c.c_int64,
            ),
        ),
    ]
