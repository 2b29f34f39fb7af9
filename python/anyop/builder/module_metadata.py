# SPDX-License-Identifier: Apache-2.0
"""Prints what the functions of a tvm-ffi library say of themselves, as JSON.

A program of its own: the library is loaded, and a broken one may end the process.

    python module_metadata.py LIBRARY LIBTVM_FFI SYMBOL...
"""

import ctypes
import json
import sys


class _Value(ctypes.Structure):
    """TVMFFIAny."""

    _fields_ = [("type", ctypes.c_int32), ("length", ctypes.c_uint32), ("bits", ctypes.c_uint64)]


class _Bytes(ctypes.Structure):
    """TVMFFIByteArray."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


_SMALL, _TEXT, _HEAD = 11, 65, 24  # kTVMFFISmallStr, kTVMFFIStr, sizeof(TVMFFIObject)


def text_of(function) -> "str | None":
    """What a function without arguments returns, when it is text."""
    result = _Value()
    if function(None, None, 0, ctypes.byref(result)) != 0:
        return None
    if result.type == _SMALL:
        at = ctypes.addressof(result) + _Value.bits.offset
        return ctypes.string_at(at, min(result.length, 7)).decode("utf-8", "replace")
    if result.type != _TEXT:
        return None
    found = _Bytes.from_address(result.bits + _HEAD)
    return ctypes.string_at(found.data, found.size).decode("utf-8", "replace")


def main() -> int:
    """One JSON object on the last line: symbol -> text."""
    path, runtime, *symbols = sys.argv[1:]
    if runtime:
        ctypes.CDLL(runtime)  # so that the library finds it by its name
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        print(json.dumps({"problem": str(error)}))
        return 0
    found = {}
    for symbol in symbols:
        function = getattr(library, symbol)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        function.restype = ctypes.c_int
        found[symbol] = text_of(function)
    print()
    print(json.dumps({"texts": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
