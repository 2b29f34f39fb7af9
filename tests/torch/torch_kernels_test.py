# SPDX-License-Identifier: Apache-2.0
"""Kernels that are functions of torch's and write their results: from the second call on they are called directly."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import anyop
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from anyop.native.glues import torch_glue  # noqa: E402

pytestmark = pytest.mark.skipif(torch_glue.load() is None, reason="torch's glue cannot be built")
X, WEIGHT = torch.linspace(-1, 1, 24).reshape(4, 6), torch.linspace(1, 2, 6)
calls = []  # whether anyop's Python stood between; what the function was given


def norm(x, weight, eps, weight_offset, dtype, *, out):
    calls.append((sys._getframe(1).f_code.co_filename.endswith("python.py"), x, weight, dtype, out))
    calls[-1] = (
        *calls[-1][:1],
        x.requires_grad,
        None if weight is None else tuple(weight.shape),
        dtype,
    )
    wide = x.double()
    normal = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    out.copy_(normal if weight is None else normal * (weight.double() + weight_offset))


@pytest.fixture
def register():
    def add(function, op="rms_norm"):
        calls.clear()
        anyop.register(op, backend="mine", device="cpu", framework="torch")(function)
        names.add(op)

    names = set()
    yield add
    for op in names:
        anyop.unregister(op, "mine")


def expected(x, weight=WEIGHT):
    wide = x.double()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()).to(
        x.dtype
    )


def test_python_is_left_out_from_the_second_call_on(register):
    register(norm)
    with anyop.use("mine"):
        for k in range(3):
            assert torch.allclose(anyop.rms_norm(X + k, WEIGHT), expected(X + k))
        assert [between for between, *_ in calls] == [True, False, False]
        assert anyop.rms_norm(X, dtype="float16").dtype == torch.float16
        assert calls[-1] == (False, False, None, torch.float16)
        out = torch.empty(4, 6)
        assert anyop.rms_norm(X, WEIGHT, out=out) is out and torch.allclose(out, expected(X))
        found = anyop.rms_norm(X.numpy(), WEIGHT.numpy())
        assert (
            isinstance(found, np.ndarray) and np.allclose(found, expected(X)) and not calls[-1][0]
        )
        empty = anyop.rms_norm(X[:0], WEIGHT)
        assert empty.shape == (0, 6) and not calls[-1][0]


def test_what_cannot_be_lent_goes_through_python(register):
    register(norm)
    x, turned = X.numpy(), np.empty((4, 6), np.float32)[::-1]
    with anyop.use("mine"):
        anyop.rms_norm(x, WEIGHT.numpy())
        found = anyop.rms_norm(x[::-1], WEIGHT.numpy(), out=turned)
    assert calls[-1][0] and found is turned
    assert np.allclose(found, expected(X.flip(0)))


class Refusing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} met the caller's mode")


def test_the_state_of_the_caller_is_kept_out_and_comes_back(register):
    register(norm)
    x = X.clone().requires_grad_()
    with anyop.use("mine"):
        anyop.rms_norm(X, WEIGHT)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = anyop.rms_norm(x, WEIGHT)
            assert torch.is_autocast_enabled("cpu") and (X @ X.T).dtype == torch.bfloat16
        assert found.requires_grad and torch.is_grad_enabled()
        assert calls[-1] == (False, False, (6,), None)
        found.sum().backward()
        with torch.inference_mode():
            inferred = anyop.rms_norm(X, WEIGHT)
            assert inferred.is_inference() and torch.is_inference_mode_enabled()
        out = torch.empty(4, 6)
        numpy = (X.numpy(), WEIGHT.numpy(), out.numpy())
        with Refusing():  # NumPy's arrays are none of its business
            anyop.rms_norm(numpy[0], numpy[1], out=numpy[2])
            with pytest.raises(AssertionError, match="met the caller's mode"):
                torch.add(X, X)
        assert torch.allclose(out, expected(X)) and not calls[-1][0]


def test_a_tensor_that_is_kept_finds_no_memory(register):
    kept = []

    def keeping(x, weight, eps, weight_offset, dtype, *, out):
        norm(x, weight, eps, weight_offset, dtype, out=out)
        if len(calls) > 1:
            kept.append(x[1:])

    register(keeping)
    with anyop.use("mine"):
        anyop.rms_norm(X, WEIGHT)
        with pytest.raises(ValueError, match=r"keeps x, .* copy it"):
            anyop.rms_norm(X, WEIGHT)
    assert not calls[-1][0] and kept[0].untyped_storage().nbytes() == 0


def test_errors_are_the_functions_own(register):
    def failing(x, weight, eps, weight_offset, dtype, *, out):
        norm(x, weight, eps, weight_offset, dtype, out=out)
        if x[0, 0] > 100:
            raise KeyError("so it is")

    register(failing)
    with anyop.use("mine"):
        anyop.rms_norm(X, WEIGHT)
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(KeyError, match="so it is"):
            anyop.rms_norm(X + 200, WEIGHT)
        assert not calls[-1][0] and (X @ X.T).dtype == torch.float32
        assert torch.allclose(anyop.rms_norm(X, WEIGHT), expected(X))


def test_a_kernel_calls_others_in_many_threads(register):
    def through(x, *, out):
        anyop.mul(x, torch.sigmoid(x), out=out)

    register(through, "silu")

    def work(k):
        x = X * k
        with anyop.use("mine"):
            return all(
                torch.allclose(anyop.silu(x), torch.nn.functional.silu(x)) for _ in range(50)
            )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
