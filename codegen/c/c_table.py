# SPDX-License-Identifier: Apache-2.0
"""The structs of anyop/table.h for ctypes: tests read what the compiler made of a table."""

from __future__ import annotations

import ctypes as c

# AnyopParamFlag.
OPTIONAL, LIST, MUTATED, OUTPUT, HAS_DEFAULT, KEYWORD_ONLY, INPLACE, EXPANDED = (
    1 << bit for bit in range(8)
)
OPTIONAL_ELEMENTS, COPIED = 256, 512


class CString(c.Structure):
    """AnyopString, and any other list by its count."""

    _fields_ = [("data", c.c_char_p), ("count", c.c_int64)]


class CList(c.Structure):
    """AnyopIntList and the like."""

    _fields_ = [("data", c.c_void_p), ("count", c.c_int64)]

    def values(self, kind: type) -> list:
        """The elements."""
        return list(c.cast(self.data, c.POINTER(kind))[: self.count])


class CValue(c.Union):
    """AnyopParam::value."""

    _fields_ = [("i", c.c_int64), ("f", c.c_double), ("s", c.c_char_p), ("list", c.POINTER(CList))]


class CParam(c.Structure):
    """AnyopParam."""

    _fields_ = [
        ("name", c.c_char_p),
        ("shape_text", c.c_char_p),
        ("offset", c.c_uint32),
        ("shape", c.c_int32),
        ("flags", c.c_uint16),
        ("kind", c.c_uint8),
        ("layout", c.c_uint8),
        ("dtype_rule", c.c_uint8),
        ("align_log2", c.c_uint8),
        ("dtype_a", c.c_int8),
        ("dtype_b", c.c_int8),
        ("dtype_set", c.c_uint64),
        ("value", CValue),
        ("length", c.c_int32),
        ("fixed_count", c.c_int32),
    ]


class CCondition(c.Structure):
    """AnyopCondition."""

    _fields_ = [("text", c.c_char_p), ("program", c.c_int32), ("reserved", c.c_int32)]


class CKernel(c.Structure):
    """AnyopKernelEntry."""

    _fields_ = [
        ("backend", c.c_char_p),
        ("source", c.c_char_p),
        ("run", c.c_void_p),
        ("device_type", c.c_int32),
        ("priority", c.c_int32),
        *((name, c.c_char_p) for name in ("name", "when", "form", "text")),
        ("flags", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


_WORDS = (
    "param_size kernel_size num_inputs num_outputs args_size sizes_offset code_words num_symbols "
    "num_sizes num_groups num_joins num_conditions num_kernels reserved"
)


class COp(c.Structure):
    """AnyopOp."""

    _fields_ = [
        ("size", c.c_uint32),
        ("abi_version", c.c_uint32),
        *((name, c.c_char_p) for name in ("name_space", "name", "schema", "doc", "metadata")),
        ("params", c.POINTER(CParam)),
        ("code", c.POINTER(c.c_int32)),
        ("symbols", c.POINTER(c.c_char_p)),
        ("attributes", c.POINTER(c.c_uint16)),
        ("joins", c.POINTER(c.c_int32)),
        ("conditions", c.POINTER(CCondition)),
        ("kernels", c.POINTER(CKernel)),
        *((name, c.c_uint32) for name in _WORDS.split()),
        ("element_symbols", c.c_uint64),
        ("element_groups", c.c_uint64),
        ("args_hash", c.c_uint64),
    ]


class CLibrary(c.Structure):
    """AnyopLibrary."""

    _fields_ = [
        ("size", c.c_uint32),
        ("abi_version", c.c_uint32),
        ("name", c.c_char_p),
        ("ops", c.POINTER(c.POINTER(COp))),
        ("num_ops", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


def load_tables(path: str) -> tuple[CLibrary, dict[str, COp]]:
    """The library behind a shared object's AnyopLibraryEntry."""
    entry = c.CDLL(path).AnyopLibraryEntry
    entry.restype = c.POINTER(CLibrary)
    library = entry().contents
    tables = [library.ops[i].contents for i in range(library.num_ops)]
    return library, {table.name.decode(): table for table in tables}
