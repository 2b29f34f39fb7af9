# SPDX-License-Identifier: Apache-2.0
"""Python's entry and arrays: NumPy, ml_dtypes, DLPack objects of both versions, buffers, files in memory, JAX."""

from __future__ import annotations

import array
import ctypes
import mmap
import subprocess
import sys

import anyop
import numpy as np
import pytest
from anyop.cases.dtype_choices import NAMES, numpy_dtype
from anyop.testing.dlpack import READ_ONLY, DlpackArray, OldDlpackArray, RaisingDlpack, deletions

ml_dtypes = pytest.importorskip(
    "ml_dtypes", reason="bfloat16 and float8 in NumPy are ml_dtypes arrays"
)

X = np.array([[-2.0, 3.0, 0.5], [1.0, -1.0, 4.0]], np.float32)
RELU = np.maximum(X, 0)


def address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def run(program: str, **environment: str) -> str:
    """What a fresh Python prints; fails with its errors."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- NumPy ----


def test_a_new_result_is_a_plain_array_of_its_own():
    for x in (X, X.T, X[0, 0], np.float32(-1)[...], X.view(np.recarray), np.asmatrix(X)):
        y = anyop.relu(x)
        assert type(y) is np.ndarray and y.dtype == np.float32 and y.shape == x.shape
        assert y.flags.c_contiguous and y.flags.writeable and y.flags.owndata and y.flags.aligned
        assert np.array_equal(y, np.maximum(np.asarray(x), 0))


def test_out_is_written_where_it_lies():
    out = np.full((4, 3), 7, np.float32)
    part = out[1:3]
    at = address(part)
    assert anyop.relu(X, out=part) is part and address(part) == at
    assert np.array_equal(out[1:3], RELU) and (out[[0, 3]] == 7).all()


def test_neighbours_in_memory_do_not_overlap():
    """A result right before or right behind its argument touches none of it."""
    memory = np.zeros(12, np.float32)
    for x, out in ((memory[:6], memory[6:]), (memory[6:], memory[:6])):
        x[...] = X.reshape(-1)
        assert anyop.relu(x, out=out) is out and np.array_equal(out, RELU.reshape(-1))
        assert np.array_equal(x, X.reshape(-1))


def test_numpy_scalars_and_flags_are_numbers():
    weight = np.ones(3, np.float32)
    expected = anyop.rms_norm(X, weight, 0.5)
    for eps in (np.float32(0.5), np.float64(0.5), np.float16(0.5), np.array(0.5)):
        assert np.array_equal(anyop.rms_norm(X, weight, eps), expected)
    assert np.array_equal(anyop.rms_norm(X, weight, True), anyop.rms_norm(X, weight, 1.0))
    for k in (2, np.int64(2), np.uint8(2)):
        assert anyop.topk(X, k)[0].shape == (2, 2)
    assert np.array_equal(anyop.topk(X, 2, np.bool_(False))[0], anyop.topk(X, 2, False)[0])


def test_read_only_inputs_are_read():
    x = X.copy()
    x.flags.writeable = False
    assert np.array_equal(anyop.relu(x), RELU)


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_goes_in_and_out_bit_for_bit(name):
    dtype = numpy_dtype(name)
    table = np.random.default_rng(1).integers(0, 256, (9, 2 * dtype.itemsize), np.uint8)
    table = (table % 2).astype(bool) if name == "bool" else table.view(dtype)
    indices = np.array([3, 0, 8, 3])
    found = anyop.embedding(indices, table)
    assert found.dtype == dtype and found.tobytes() == table[indices].tobytes()
    out = np.zeros_like(found)
    at = address(out)
    assert anyop.embedding(indices, table, out=out) is out
    assert address(out) == at and out.tobytes() == found.tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_every_bit_pattern_survives(name):
    dtype = numpy_dtype(name)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    table = (
        np.arange(2 ** (8 * dtype.itemsize), dtype=np.uint32).astype(unsigned).view(dtype)[:, None]
    )
    found = anyop.embedding(np.arange(len(table)), table)
    assert found.dtype == dtype and np.array_equal(found.view(unsigned), table.view(unsigned))


def test_bfloat16_is_computed_as_such():
    x = X.astype(ml_dtypes.bfloat16)
    y = anyop.relu(x)
    assert y.dtype == ml_dtypes.bfloat16 and np.array_equal(y.astype(np.float32), RELU)


def test_long_and_long_long_are_int64():
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    for dtype in (np.int64, np.longlong, np.int_, "q", "l", "=i8", "<i8"):
        assert np.array_equal(anyop.embedding(np.array([2, 0], dtype), table), table[[2, 0]])


def test_without_ml_dtypes_a_clear_error():
    program = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np, anyop
from anyop.testing.dlpack import DlpackArray
x = DlpackArray(np.array([0x3f80, 0xbf80], np.uint16), dtype=(4, 16, 1))
out = np.zeros(2, np.uint16)
try:
    anyop.relu(x)
except TypeError as error:
    print(error)
assert np.array_equal(anyop.relu(np.float32([-1, 2])), [0, 2])  # the process goes on
anyop.relu(x, out=DlpackArray(out, dtype=(4, 16, 1)))
print(out.tolist())
"""
    text, values = run(program).splitlines()
    assert (
        text
        == "relu: out would be a NumPy array of bfloat16, which needs the package ml_dtypes: pip install ml_dtypes"
    )
    assert values == "[16256, 0]"


def test_without_numpy_results_must_be_given():
    program = """
import sys
sys.modules["numpy"] = None
import array, anyop
x, y = array.array("f", [-1, 2]), array.array("f", [5, 5])
try:
    anyop.relu(x)
except TypeError as error:
    print(error)
assert anyop.relu(x, out=y) is y
print(y.tolist())
"""
    text, values = run(program).splitlines()
    assert text.startswith("relu: out would be a NumPy array, and NumPy is not installed")
    assert values == "[0.0, 2.0]"


def test_neither_torch_nor_tvm_ffi_is_imported():
    program = """
import sys
import anyop
import numpy as np
anyop.rms_norm(np.ones((2, 4), np.float32), np.ones(4, np.float32))
anyop.linear(np.ones((2, 4), np.float32), np.ones((3, 4), np.float32))
try:
    anyop.relu("text")
except TypeError:
    pass
anyop.list_ops(), anyop.metadata("relu"), anyop.load, dir(anyop)
import importlib.util
there = [name for name in ("torch", "tvm_ffi", "ml_dtypes") if importlib.util.find_spec(name)]
print(there, sorted({"torch", "tvm_ffi", "ml_dtypes", "jax", "anyop.testing"} & set(sys.modules)))
"""
    there, imported = run(program).split("] ")
    assert imported == "[]"
    if "torch" not in there or "tvm_ffi" not in there:
        pytest.skip(f"only these of torch, tvm_ffi, ml_dtypes are installed: {there}]")


# ---- DLPack ----


@pytest.mark.parametrize("form", [DlpackArray, OldDlpackArray])
def test_any_dlpack_object_is_read(form):
    view = np.asfortranarray(X)
    for x in (form(X), form(view), form(X[:, ::2]), form(X[::-1])):
        assert np.array_equal(anyop.relu(x), np.maximum(x.array, 0))
    y = anyop.rms_norm(form(X), form(np.ones(3, np.float32)))
    assert np.array_equal(y, anyop.rms_norm(X, np.ones(3, np.float32)))
    assert np.array_equal(anyop.add(X, form(X)), X + X)


def test_fields_of_dlpack_are_honoured():
    flat = np.arange(12, dtype=np.float32) - 6
    shown = DlpackArray(flat, shape=(2, 3), strides=(3, 1), byte_offset=8)
    assert np.array_equal(anyop.relu(shown), np.maximum(flat[2:8].reshape(2, 3), 0))
    no_strides = DlpackArray(flat, shape=(3, 4), strides=())
    no_strides.strides = None
    assert np.array_equal(anyop.relu(no_strides), np.maximum(flat.reshape(3, 4), 0))
    empty = DlpackArray(flat, shape=(0, 3), strides=(3, 1), data=None)
    assert anyop.relu(empty).shape == (0, 3)
    assert np.array_equal(anyop.relu(DlpackArray(X, flags=READ_ONLY)), RELU)
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    y = anyop.relu(DlpackArray(bits, dtype=(4, 16, 1)))
    assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [[1, 0]]


def test_a_dlpack_object_as_result_is_written_and_returned():
    memory = np.zeros_like(X)
    out = DlpackArray(memory)
    assert anyop.relu(DlpackArray(X), out=out) is out
    assert np.array_equal(memory, RELU)


def test_capsules_are_let_go_once_whatever_happens():
    for call, error in (
        (lambda x: anyop.relu(x), None),
        (
            lambda x: anyop.relu(x, x),
            ValueError if "relu" not in anyop.metadata("relu")["inplace"] else None,
        ),
        (lambda x: anyop.rms_norm(x, X), ValueError),
        (lambda x: anyop.rms_norm(x, "text"), TypeError),
        (lambda x: anyop.rms_norm(X, x), ValueError),
    ):
        x = DlpackArray(X.copy())
        before, references = deletions(), sys.getrefcount(x)
        asked = [0]
        plain = x.__dlpack__

        def count(asked=asked, plain=plain, **keywords):
            asked[0] += 1
            return plain(**keywords)

        x.__dlpack__ = count
        try:
            call(x)
        except (ValueError, TypeError) as raised:
            assert error is None or type(raised) is error
        del x.__dlpack__, count, plain
        assert deletions() - before == asked[0] >= 1
        assert sys.getrefcount(x) == references


def test_an_error_of_the_objects_own_arrives():
    with pytest.raises(BufferError, match=r"^this array is busy$"):
        anyop.relu(RaisingDlpack(X))
    assert np.array_equal(anyop.relu(X), RELU)


# ---- buffers and files ----


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_while_an_object_is_looked_at_arrives(kind):
    """In the object's own __getattr__; an ordinary error there means that it is no tensor."""
    raised = kind("mine")

    class Odd:
        def __getattr__(self, name):
            raise raised

    with pytest.raises(kind) as found:
        anyop.relu(Odd())
    assert found.value is raised
    raised = KeyError("mine")
    with pytest.raises(TypeError, match=r"relu: x is a .*Odd, expected a tensor"):
        anyop.relu(Odd())


def test_buffers_are_arrays():
    values = [-1.0, 2.0, -3.0, 4.0]
    expected = [0, 2, 0, 4]
    floats = array.array("f", values)
    fortran = memoryview(np.asfortranarray(X))
    for x in (
        floats,
        memoryview(floats),
        (ctypes.c_float * 4)(*values),
        memoryview(array.array("d", values)),
    ):
        y = anyop.relu(x)
        assert type(y) is np.ndarray and y.tolist() == expected
    assert np.array_equal(anyop.relu(fortran), RELU)
    assert anyop.relu(memoryview(floats)[::2]).tolist() == [0, 0]
    assert anyop.relu(memoryview(floats).cast("B").cast("f", (2, 2))).shape == (2, 2)
    table = bytes(range(12))
    rows = anyop.embedding(array.array("i", [2, 0]), memoryview(table).cast("B", (3, 4)))
    assert rows.dtype == np.uint8 and rows.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]


def test_buffers_as_results():
    out = array.array("f", [9.0] * 3)
    assert anyop.relu(X[0], out=out) is out and out.tolist() == [0, 3, 0.5]
    memory = bytearray(12)
    view = memoryview(memory).cast("f")
    assert anyop.relu(X[0], out=view) is view and np.frombuffer(memory, np.float32).tolist() == [
        0,
        3,
        0.5,
    ]
    for fixed in (bytes(12), memoryview(bytes(12)).cast("f"), memoryview(out).toreadonly()):
        with pytest.raises((ValueError, TypeError), match="relu: out"):
            anyop.relu(X[0], out=fixed)
    with pytest.raises(ValueError, match="relu: out is read-only"):
        anyop.relu(X[0], out=memoryview(out).toreadonly())


def test_buffers_are_released():
    """While a buffer is held an array.array refuses to grow."""
    x = array.array("f", [1.0, 2.0])
    anyop.relu(x)
    x.append(3.0)
    for bad in (
        lambda: anyop.rms_norm(x, "text"),
        lambda: anyop.rms_norm(x, X),
        lambda: anyop.rms_norm(X, x, nonsense=1),
    ):
        with pytest.raises((ValueError, TypeError)):
            bad()
        x.append(3.0)


@pytest.mark.parametrize(
    "value", [array.array("u", "ab"), (ctypes.c_char_p * 2)(), memoryview(b"abcd").cast("c")]
)
def test_buffers_of_other_formats_are_refused(value):
    with pytest.raises(TypeError, match="relu: x has the buffer format"):
        anyop.relu(value)


def test_records_and_foreign_order_in_buffers_are_refused():
    class Swapped(ctypes.BigEndianStructure):
        _fields_ = (("a", ctypes.c_float),)

    for value in ((Swapped * 2)(), (ctypes.c_float.__ctype_be__ * 2)(1, 2)):
        with pytest.raises(TypeError, match="relu: x has the buffer format"):
            anyop.relu(value)


def test_memory_mapped_files(tmp_path):
    path = tmp_path / "x.bin"
    X.tofile(path)
    x = np.memmap(path, np.float32, "r", shape=X.shape)
    y = anyop.relu(x)
    assert type(y) is np.ndarray and np.array_equal(y, RELU)
    with pytest.raises(ValueError, match="relu: out is read-only"):
        anyop.relu(X, out=x)
    out = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=X.shape)
    assert anyop.relu(x, out=out) is out
    out.flush()
    assert np.array_equal(np.fromfile(tmp_path / "y.bin", np.float32).reshape(X.shape), RELU)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        view = memoryview(raw).cast("f", X.shape)
        assert np.array_equal(anyop.relu(view), RELU)
        view.release()


# ---- JAX ----


def test_jax_arrays_are_never_written():
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    x = jnp.asarray(X)
    assert np.array_equal(np.asarray(anyop.relu(x)), RELU)
    with pytest.raises(TypeError, match=r"relu: out is a jax\.Array, expected a numpy\.ndarray"):
        anyop.relu(X, out=x)
    assert np.array_equal(np.asarray(x), X)
