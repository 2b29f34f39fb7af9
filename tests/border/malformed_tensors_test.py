# SPDX-License-Identifier: Apache-2.0
"""DLTensors that no memory is, from Python's objects, to ATen's operators and from C callers: refused by name."""

from __future__ import annotations

import ctypes

import anyop
import numpy as np
import pytest
from anyop.testing.dlpack import DlpackArray, OldDlpackArray

X = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
W = np.linspace(0.5, 1.5, 64, dtype=np.float32)
MALFORMED = {
    "no sizes": ({"shape": None, "ndim": 2}, "no sizes"),
    "ndim -1": ({"ndim": -1}, "-1 dimensions"),
    "ndim 2^31-1": ({"ndim": 2**31 - 1}, "dimensions"),
    "ndim -2^31": ({"ndim": -(2**31)}, "dimensions"),
    "NULL": ({"data": None}, "no storage"),
    "NULL and an offset": ({"data": None, "byte_offset": 64}, "no storage"),
    "an odd offset": ({"byte_offset": 2}, "multiple of"),
    "no lanes": ({"dtype": (2, 32, 0)}, "dtype"),
    "lanes": ({"dtype": (2, 32, 4)}, "dtype"),
    "no bits": ({"dtype": (2, 0, 1)}, "dtype"),
    "half a byte": ({"dtype": (0, 4, 1)}, "dtype"),
    "an unknown type": ({"dtype": (200, 32, 1)}, "dtype"),
    "an unknown device": ({"device": (99, 0)}, "device"),
    "no device": ({"device": (0, 0)}, "device"),
    "a negative device": ({"device": (-1, 0)}, "device"),
    "a negative size": ({"shape": (-4, 64)}, "negative"),
    "the least size": ({"shape": (-(2**63), 64)}, "negative"),
    "a product that overflows": ({"shape": (2**62, 64)}, "overflows"),
    "a stride that overflows": ({"shape": (4, 64), "strides": (2**62, 1)}, "overflows"),
    "the least stride": ({"shape": (4, 64), "strides": (-(2**63), 1)}, "overflows"),
    "beyond memory": ({"shape": (2, 64), "strides": (2**61 - 100, 1)}, "beyond all memory"),
}  # fmt: skip


class Malformed:
    """A DLPack object whose fields are the case's."""

    def __new__(cls, kind, fields):
        made = kind(X, **fields)
        if "shape" in fields and fields["shape"] is None:
            made.shape = None
        return made


@pytest.mark.parametrize("kind", [DlpackArray, OldDlpackArray])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_tensors_are_refused(name, kind):
    fields, says = MALFORMED[name]
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=says) as error:
        anyop.rms_norm(Malformed(kind, fields), W)
    assert str(error.value).startswith("rms_norm: ")
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        anyop.relu(Malformed(kind, fields))


@pytest.mark.parametrize("name", [n for n in MALFORMED if "device" not in n and "beyond" not in n])
def test_malformed_tensors_are_refused_by_aten(name):
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=r"argument|self"):
        anyop.aten.relu(Malformed(DlpackArray, MALFORMED[name][0]))


@pytest.mark.parametrize("name", [n for n in MALFORMED if n != "a negative device"])
def test_malformed_tensors_are_refused_through_tvm_ffi(name):
    """As DLTensors of a C caller."""
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    import tvm_ffi

    function = tvm_ffi.get_global_func("anyop.rms_norm")
    fields, says = MALFORMED[name]
    call = ctypes_call(function, [Malformed(DlpackArray, fields), DlpackArray(W)])
    assert says in call or "dtype" in call, call


def ctypes_call(function, arrays):
    """The text of the error of TVMFFIFunctionCall with DLTensor* arguments."""
    import tvm_ffi
    from anyop.testing.dlpack import _Tensor

    class Any(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_int32),
            ("zero", ctypes.c_uint32),
            ("value", ctypes.c_void_p),
        ]

    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    tensors = [_Tensor() for _ in arrays]
    values = (Any * len(arrays))()
    for value, tensor, array in zip(values, tensors, arrays):
        array._fill(tensor)
        value.type, value.value = 7, ctypes.addressof(tensor)  # kTVMFFIDLTensorPtr
    handle = ctypes.c_void_p(function.__chandle__())
    result = Any()
    assert library.TVMFFIFunctionCall(handle, values, len(arrays), ctypes.byref(result)) == -1
    error = ctypes.c_void_p()
    library.TVMFFIErrorMoveFromRaised(ctypes.byref(error))

    class Bytes(ctypes.Structure):
        _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]

    kind_and_text = ctypes.cast(error.value + 24, ctypes.POINTER(Bytes * 2)).contents
    return kind_and_text[1].data.decode()
