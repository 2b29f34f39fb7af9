# SPDX-License-Identifier: Apache-2.0
"""ATen from Python, with NumPy: values of every dtype, views, arguments written in place, factories, wrong calls."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import torch
from anyop import aten

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def same(found, expected):
    expected = np.asarray(expected)
    assert isinstance(found, np.ndarray) and found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_arguments_by_position_and_name():
    same(aten.add(X, X, alpha=2), X * 3)
    same(aten.add(self=X, other=1), X + 1)
    same(aten.add.Tensor(X, other=X), X + X)
    same(aten.call("add.Scalar", X, 2, 3), X + 6)
    same(aten.sum(X, [0], True), X.sum(0, keepdims=True))
    same(aten.sum(X, 1, dtype="float64"), X.sum(1, np.float64))
    same(aten.sum(X, dim=-1, keepdim=False), X.sum(1))
    same(aten.clamp(X, None, 3), np.minimum(X, 3))
    same(aten.div(X, X + 2, rounding_mode="floor"), np.floor(X / (X + 2)))
    same(aten.cat([X, X], 1), np.concatenate([X, X], 1))
    same(aten.index(X, [None, np.array([2, 0])]), X[:, [2, 0]])
    same(aten.max_pool2d(np.ones((1, 1, 4, 4)), 2), np.ones((1, 1, 2, 2)))
    same(aten.upsample_nearest1d(X[None], None, [2.0]), np.repeat(X[None], 2, 2))


def test_numbers():
    for number in (2, 2.0, True, np.float32(2), np.int64(2), np.bool_(True), ml_dtypes.bfloat16(2)):
        same(aten.mul(X, number), X * np.float32(number))
    same(aten.mul(X, 2j), X * np.complex64(2j))
    same(aten.mul(X, np.complex64(2j)), X * np.complex64(2j))
    same(aten.mul(X, np.array(2, np.float64)), X * 2)  # of no dimension: does not promote
    same(aten.sum(X, np.int64(1)), X.sum(1))
    same(aten.zeros(np.array([2, 3])), np.zeros((2, 3), np.float32))
    assert aten.item(np.array(3)) == 3 and type(aten.item(np.array(3))) is int
    assert aten.item(np.array(2j)) == 2j and aten.item(np.array(True)) is True


@pytest.mark.parametrize("dtype", [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
])  # fmt: skip
def test_every_dtype_in_and_out(dtype):
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    given = np.array([[1, 2], [4, 8]]).astype(numpy_dtype)
    same(aten.clone(given), given)
    same(aten.t(given), given.T)
    for name in (dtype, getattr(torch, dtype), numpy_dtype, numpy_dtype.type):
        same(aten.ones([2], dtype=name), np.ones(2, numpy_dtype))


def test_python_types_are_dtypes_as_numpy_means_them():
    for kind in (float, int, bool, complex):
        assert aten.ones([1], dtype=kind).dtype == np.dtype(kind)


def test_views_alias_and_outlive():
    base = X.copy()
    view = aten.transpose(base, 0, 1)
    view[0, 1] = 50
    assert base[1, 0] == 50 and np.shares_memory(view, base)
    held = sys.getrefcount(base)
    parts = aten.split(base, 1)
    assert sys.getrefcount(base) > held
    expected = base.copy()
    del base
    gc.collect()
    same(view, expected.T)
    same(parts[1], expected[1:])
    again = aten.select(view, 0, 0)
    del view, parts
    gc.collect()
    same(again, expected[:, 0])


def test_what_is_written_is_the_argument_itself():
    x, out = X - 3, np.empty_like(X)
    assert aten.relu_(x) is x and x.min() == 0
    assert aten.add(X, X, out=out) is out
    same(out, X + X)
    values, indices = np.empty(2, np.float32), np.empty(2, np.int64)
    found = aten.max(X, 1, max=values, max_values=indices)
    assert found[0] is values and found[1] is indices
    same(indices, [2, 2])
    same(aten.t_(x), x.T)  # NumPy's array keeps its shape: the result has the new one
    assert x.shape == (2, 3)
    columns = np.zeros((2, 4), np.float32)[:, ::2]
    assert aten.fill_(columns, 7) is columns and (columns == 7).all()


def test_nothing_is_resized_and_nothing_immutable_written():
    fixed = X.copy()
    fixed.flags.writeable = False
    for out in (np.empty(0, np.float32), np.empty(6, np.float32), np.empty((3, 3), np.float32)):
        with pytest.raises(ValueError, match="out has shape"):
            aten.add(X, X, out=out)
    for refused in (lambda: aten.relu_(fixed), lambda: aten.add(X, X, out=fixed),
                    lambda: aten.relu_(aten.t(fixed)), lambda: aten.neg_(fixed[::-1])):  # fmt: skip
        with pytest.raises(ValueError, match=r"read-only|negative strides"):
            refused()
    with pytest.raises(ValueError, match="running_mean is read-only"):
        aten.native_batch_norm(X, None, None, fixed[0], fixed[1], True, 0.1, 1e-5)
    same(fixed, X)


def test_negative_strides():
    turned = X[::-1, ::-1]
    same(aten.add(turned, turned), turned + turned)
    same(aten.cat([turned, X]), np.concatenate([turned, X]))
    same(aten.relu_(np.zeros((1, 2), np.float32)[::-1]), np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match=r"self has negative strides.*share its memory"):
        aten.t(turned)
    with pytest.raises(ValueError, match=r"self has negative strides.*in its place"):
        aten.relu_(turned)


def test_results_that_are_no_plain_memory():
    same(aten._conj(np.array([1 + 2j])), np.array([1 - 2j]))
    same(aten._neg_view(X), -X)
    same(aten._efficientzerotensor([2]), np.zeros(2, np.float32))
    with pytest.raises(TypeError, match=r'to_sparse: a result has no memory.*like="torch"'):
        aten.to_sparse(X)
    sparse = aten.to_sparse(X, like="aten")
    same(aten.mm(sparse, np.ones((3, 2), np.float32)), X @ np.ones((3, 2), np.float32))
    same(aten.to_dense(sparse, like="numpy"), X)
    with pytest.raises(TypeError, match="meta"):
        aten.zeros([2], device="meta")


def test_results_of_other_kinds():
    assert aten.result_type(X, 1.5) == "float32"
    assert aten.promote_types("float32", np.float64) == "float64"
    assert aten.equal(X, X) is True and aten.size(X, 1) == 3
    backward = aten.convolution_backward(
        np.ones((1, 1, 2)), np.ones((1, 1, 2)), np.ones((1, 1, 1)), [0], [1], [0], [1], False, [0],
        1, [True, False, False],
    )  # fmt: skip
    assert backward[1] is None and backward[2] is None and backward[0].shape == (1, 1, 2)


def test_factories_and_like():
    same(aten.arange(3), np.arange(3))
    same(
        aten.full([2], 1.5, dtype="float16", device="cpu", layout="strided"), np.full(2, 1.5, "f2")
    )
    assert isinstance(aten.zeros([2], like="torch"), torch.Tensor)
    assert isinstance(aten.zeros([2], like=torch.ones(1)), torch.Tensor)
    held = aten.ones([2, 3], like="aten")
    assert (held.shape, held.strides, held.dtype, held.device) == ((2, 3), (3, 1), "float32", "cpu")
    same(np.from_dlpack(held), np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match="like: got 'nobody'"):
        aten.zeros([2], like="nobody")


def test_random_numbers_with_a_seed():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    expected = torch.rand(3, generator=torch.Generator().manual_seed(7)).numpy()
    same(aten.rand([3], generator=7), expected)
    same(aten.rand([3], generator=torch.Generator().manual_seed(7)), expected)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(TypeError, match="fit no overload"):
        aten.rand([3], generator="seven")


def test_wrong_calls_say_why():
    with pytest.raises(TypeError) as error:
        aten.add(X, "a")
    assert "add.Tensor(Tensor self" in str(error.value)
    assert "other is a str, expected Tensor" in str(error.value)
    for wrong, text in [
        (lambda: aten.add(X, 1, foo=2), "no argument 'foo'"),
        (lambda: aten.add(X), "other is missing"),
        (lambda: aten.add(X, 1, self=X), "given twice"),
        (lambda: aten.relu(X, X), "expected at most 1"),
        (lambda: aten.softmax(X, 1.5), "dim is a float"),
        (lambda: aten.softmax(X, np.array(1.5)), "has a fraction"),
        (lambda: aten.sum(X, dtype=99), "no code"),
        (lambda: aten.sum(X, 2**70), "dim is an int"),
        (lambda: aten.relu(np.array(["a"])), "NumPy dtype <U1"),
        (lambda: aten.relu(np.array([None])), "NumPy dtype object"),
        (lambda: aten.relu(np.ma.array([1.0])), "masked"),
        (lambda: aten.relu(X.astype(">f4")), "byte order"),
        (lambda: aten.cat([X, torch.ones(1)]), "torch.Tensor, expected a numpy.ndarray"),
        (lambda: aten.relu(*[X] * 70), "70 arguments"),
    ]:
        with pytest.raises(TypeError, match=text):
            wrong()
    with pytest.raises(IndexError, match="Dimension out of range"):
        aten.select(X, 5, 0)
    with pytest.raises(RuntimeError, match="positive-definite"):
        aten.linalg_cholesky(-np.eye(2))
    with pytest.raises(AttributeError, match=r"no overload add.foo of ATen, but add.Tensor"):
        aten.add.foo  # noqa: B018


def test_buffers_and_dlpack_objects():
    class Wrapped:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    same(aten.add(bytearray(b"\1\2"), 1), np.array([2, 3], np.uint8))
    same(aten.add(memoryview(X), X), X + X)
    view = aten.t(Wrapped(X.copy()))
    gc.collect()
    same(view, X.T)


def test_functions_can_be_pickled():
    for function in (aten.add, aten.add.Tensor, aten.sum.default):
        again = pickle.loads(pickle.dumps(function))
        assert again.__name__ == function.__name__ and copy.deepcopy(function) is not None
    assert pickle.loads(pickle.dumps(aten.add))(np.ones(2), 1.0).tolist() == [2, 2]


def test_a_kernel_that_needs_aligned_memory_gets_no_other():
    """It would end the process, through torch.ops too."""
    memory = np.zeros(4 * 32 * 2 + 64, np.uint8)
    at = -memory.ctypes.data % 32
    x = memory[at : at + 256].view(np.uint16).reshape(4, 32).view(ml_dtypes.bfloat16)
    odd = memory[at + 16 : at + 272].view(np.uint16).reshape(4, 32).view(ml_dtypes.bfloat16)
    weight = memory[at : at + 256].view(np.int8).reshape(8, 32)
    scales = memory[at : at + 16].view(ml_dtypes.bfloat16)
    assert aten._weight_int8pack_mm(x, weight, scales).shape == (4, 8)
    with pytest.raises(ValueError, match="self begins at an address that is no multiple of 32"):
        aten._weight_int8pack_mm(odd, weight, scales)


def test_no_python_of_torch_runs():
    calls = []
    aten.add(X, X, alpha=2)

    def watch(frame, event, argument):
        module = frame.f_globals.get("__name__", "") if event == "call" else ""
        calls.append(module or str(getattr(argument, "__module__", "")))

    sys.setprofile(watch)
    aten.add(X, X, alpha=2)
    aten.split(X, 1)
    sys.setprofile(None)
    assert not [name for name in calls if name.startswith("torch")]


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_memory_and_references_stay_flat():
    x, out, names = X.copy(), np.empty_like(X), ["self", "other"]
    big = np.zeros(100_000)  # a view that is not let go of would be seen
    wrong = [(x, "a"), (x, None, 3, 4), (x, torch.ones(1))]

    def calls(count):
        for i in range(count):
            aten.add(x, x, out=out)
            aten.split(x, 1)
            aten.sum(x, [0, 1], dtype="float64")
            aten.add(x[::-1], 1)
            aten.rand([2], generator=1)
            aten.t(big.copy().reshape(2, -1))
            aten.add(**dict(zip(names, (x, x))))
            with contextlib.suppress(TypeError, RuntimeError):
                aten.add(*wrong[i % 3])
        gc.collect()

    calls(100)
    counts = [sys.getrefcount(held) for held in (x, out, names, np.float32)]
    nones, before = sys.getrefcount(None), resident_bytes()
    calls(2000)
    assert [sys.getrefcount(held) for held in (x, out, names, np.float32)] == counts
    assert abs(sys.getrefcount(None) - nones) < 100
    assert resident_bytes() - before < 4 << 20


def test_threads():
    wrong = []

    def work(number):
        x = np.full((4, 4), number, np.float32)
        for _ in range(1000):
            if aten.add(x, x, alpha=3)[0, 0] != 4 * number or aten.t(x)[0, 0] != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_interpreter_may_end_meanwhile():
    """Threads that lend memory while Python ends are not thrown out of torch's frames; what lives is left alone."""
    code = """
import threading
import numpy as np
from anyop import aten
x = np.ones((2, 2))
kept = [aten.t(x), aten.ones([2], like="aten")]
def spin():
    while True:
        aten.t(x)
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
