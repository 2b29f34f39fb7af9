# SPDX-License-Identifier: Apache-2.0
"""What a kernel raises arrives as itself: the same object with its traceback, by every way that ends in Python."""

import importlib.util
import shutil
import subprocess
import sys
import traceback

import anyop
import numpy as np
import pytest

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
BIG = np.ones((1024, 1024), np.float32)  # its kernel runs without Python's lock


class Own(Exception):
    def __init__(self, number):
        super().__init__("own", number)
        self.number = number


class OwnBase(BaseException):
    pass


ERRORS = [
    Own(7), OwnBase("base"), ValueError("é: " + "long " * 500), TypeError(), KeyError("key"), MemoryError("none"),
    NotImplementedError("not"), RecursionError("deep"), StopIteration(3), GeneratorExit("gone"), KeyboardInterrupt(),
    SystemExit(3), OSError(2, "No such file", "name"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
]  # fmt: skip


def needs(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")


@pytest.fixture
def raising():
    """relu's kernel: raises what is put in the list."""
    errors = []

    def kernel(x):
        raise errors[0]

    anyop.register("relu", "mine", kernel, name="raising", priority=9)
    yield errors
    anyop.unregister("relu", "raising")


def check(call, error, *args, **keywords):
    with pytest.raises(BaseException) as caught:
        call(*args, **keywords)
    assert caught.value is error
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert "kernel" in names
    error.__traceback__ = None


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_by_a_call(raising, error):
    raising.append(error)
    for x in (X, BIG):
        check(anyop.relu, error, x)
        check(anyop.relu, error, x, out=np.empty_like(x))


@needs("torch")
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_by_torch(raising, error):
    import anyop.torch
    import torch

    raising.append(error)
    x, leaf = torch.tensor(X), torch.tensor(X, requires_grad=True)
    check(lambda: anyop.relu(x), error)
    check(lambda: torch.ops.anyop.relu(x), error)
    check(lambda: anyop.relu(leaf), error)
    check(lambda: torch.ops.anyop.relu(leaf), error)


@needs("torch")
def test_in_a_backward_pass():
    import torch

    error = Own(1)

    def kernel(grad, x):
        raise error

    anyop.register("relu_backward", "mine", kernel, name="raising", priority=9)
    try:
        leaf = torch.tensor(X, requires_grad=True)
        result = anyop.relu(leaf)
        check(lambda: result.sum().backward(), error)
    finally:
        anyop.unregister("relu_backward", "raising")


@needs("tvm_ffi")
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_by_tvm_ffi(raising, error):
    import tvm_ffi

    raising.append(error)
    function = tvm_ffi.get_global_func("anyop.relu")
    for x in (X, BIG):
        check(function, error, x)


def test_through_kernels_of_kernels(raising):
    """A kernel that calls an operator whose kernel raises: one object, once."""
    error = Own(5)
    raising.append(error)
    anyop.register("gelu", "mine", lambda x, *rest: anyop.relu(x), name="outer", priority=9)
    try:
        check(lambda: anyop.gelu(X), error)
    finally:
        anyop.unregister("gelu", "outer")


def test_the_next_error_is_its_own(raising):
    raising.append(Own(1))
    with pytest.raises(Own):
        anyop.relu(X)
    with pytest.raises(ValueError, match="weight"):
        anyop.rms_norm(X, X)
    raising[0] = Own(2)
    with pytest.raises(Own, match="2"):
        anyop.relu(X)


def test_no_frame_keeps_the_memory_of_the_call(raising):
    """Views of a call's memory are gone from the traceback's frames; one that the error holds is refused by name."""
    raising.append(Own(1))
    with pytest.raises(Own) as caught:
        anyop.relu(X)
    for frame, _ in traceback.walk_tb(caught.value.__traceback__):
        if frame.f_code.co_name == "kernel":
            assert "x" not in frame.f_locals

    def keeps(x):
        raise Own(x)

    anyop.register("gelu", "mine", lambda x, *rest: keeps(x), name="keeps", priority=9)
    try:
        with pytest.raises(anyop.InternalError, match=r"gelu: keeps: Own: \('own', array"):
            anyop.gelu(X)
    finally:
        anyop.unregister("gelu", "keeps")


def test_system_exit_ends_with_its_code():
    program = (
        "import anyop, numpy as np, sys\n"
        "anyop.register('relu', 'mine', lambda x: sys.exit(3), priority=9)\n"
        "anyop.relu(np.ones(4, np.float32))\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 3


BOOM = """
#include <anyop/kernel.h>
#include <stdexcept>
void boom(const float* x, float* out, int64_t n, int64_t how, AnyopCall* call) {
  if (how == 1) throw std::runtime_error("boom");
  if (how == 2) throw 5;
  anyop::ParallelFor(call, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (how == 3 && i == n / 2) throw std::runtime_error("boom in a piece");
      out[i] = x[i];
    }
  });
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_what_a_compiled_kernel_throws_keeps_its_text():
    """Also from a piece of work in another thread, and with Python's lock let go of: the next calls are right."""
    boom = anyop.jit.load("throwing", source=BOOM, functions=["boom"]).boom
    for x in (X.ravel(), BIG.ravel()):
        out = np.empty_like(x)
        for how, text in ((1, "boom: boom$"), (2, "unknown kind"), (3, "boom: boom in a piece$")):
            for _ in range(3):
                with pytest.raises(anyop.InternalError, match=text):
                    boom(x, out, x.size, how)
                out[:] = 0
                boom(x, out, x.size, 0)
                assert np.array_equal(out, x)


class Named:
    """A dtype whose own code raises."""

    def __init__(self, attribute, error):
        self.attribute, self.error = attribute, error

    def __getattr__(self, name):
        if name == self.attribute:
            raise self.error
        raise AttributeError(name)

    def __str__(self):
        raise AssertionError("what stands before it has raised")


@pytest.mark.parametrize("attribute", ["name", "__name__"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), OwnBase("base"), Own(7)], ids=repr
)
def test_what_a_dtypes_own_code_raises(attribute, error):
    with pytest.raises(BaseException) as caught:
        anyop.cast(X, Named(attribute, error))
    assert caught.value is error
