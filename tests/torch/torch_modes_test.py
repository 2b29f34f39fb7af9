# SPDX-License-Identifier: Apache-2.0
"""Autocast and the flop counter as operators' files state them; forms of call that torch's dispatcher gets."""

from __future__ import annotations

import anyop.torch
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

F = torch.nn.functional
entries = pytest.mark.parametrize("ops", [anyop, torch.ops.anyop], ids=["anyop", "torch.ops"])


def tensors(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(8)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


# ---- autocast ----


@entries
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_operators_run_in_autocasts_dtype(ops, dtype):
    x, w, b = tensors((5, 16), (8, 16), (8,))
    with torch.autocast("cpu", dtype=dtype):
        found = ops.linear(x, w, b)
        expected = F.linear(x, w, b)
        assert ops.matmul(x, w.t()).dtype == dtype
        q = x.view(1, 1, 5, 16)
        assert ops.attention(q, q, q, mask=torch.zeros(5, 5)).dtype == dtype
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected, atol=5e-2, rtol=2e-2)


@entries
def test_float32_operators_run_in_float32(ops):
    x, w = tensors((5, 16), (16,), dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, softened = ops.rms_norm(x, w), ops.softmax(x)
    assert found.dtype == softened.dtype == torch.float32
    assert torch.equal(found, anyop.rms_norm(x.float(), w.float()))
    assert torch.equal(softened, anyop.softmax(x.float()))
    assert ops.rms_norm(x, w).dtype == torch.bfloat16, "off again"


@entries
def test_what_autocast_leaves_alone(ops):
    """float64, integers, operators without a rule, and everything where autocast is off."""
    x, w = tensors((5, 16), (8, 16), dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.linear(x, w).dtype == torch.float64
        assert ops.gelu(x.float()).dtype == torch.float32
        assert ops.embedding(torch.tensor([1, 0]), w).dtype == torch.float64
        with torch.autocast("cpu", enabled=False):
            assert ops.linear(x.float(), w.float()).dtype == torch.float32


@entries
def test_autocast_records_gradients_of_the_original_dtype(ops):
    x, w = (tensor.requires_grad_() for tensor in tensors((5, 16), (8, 16)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(ops.linear(x, w).float().square().sum(), (x, w))
        expected = torch.autograd.grad(F.linear(x, w).float().square().sum(), (x, w))
    for a, b in zip(found, expected):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, atol=0.3, rtol=5e-2)


def test_autocast_in_a_compiled_function():
    x, w = tensors((5, 16), (8, 16))
    compiled = torch.compile(lambda x, w: anyop.linear(x, w), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(x, w), anyop.linear(x, w)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)


# ---- flops ----


@entries
def test_flops_are_counted(ops):
    x, w, m, q = tensors((4, 3, 16), (8, 16), (4, 16, 5), (2, 6, 7, 16))
    k, v = tensors((2, 3, 9, 16), (2, 3, 9, 5))
    for call, expected in (
        (lambda: ops.linear(x, w), 2 * 12 * 16 * 8),
        (lambda: ops.matmul(x, m), 2 * 4 * 3 * 16 * 5),
        (lambda: ops.matmul(x, m[:1]), 2 * 4 * 3 * 16 * 5),
        (lambda: ops.attention(q, k, v), 2 * 2 * 6 * 7 * 9 * (16 + 5)),
        (lambda: ops.linear(x, w, out=torch.empty(4, 3, 8)), 2 * 12 * 16 * 8),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == expected
    with FlopCounterMode(display=False) as counter:
        torch.matmul(x, m)
    assert counter.get_total_flops() == 2 * 4 * 3 * 16 * 5, "torch counts alike"


def test_flops_of_a_backward_pass():
    x, w = (tensor.requires_grad_() for tensor in tensors((6, 16), (8, 16)))
    counts = []
    for linear in (anyop.linear, F.linear):
        with FlopCounterMode(display=False) as counter:
            linear(x, w).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 6 * 16 * 8


# ---- forms of call ----


@pytest.fixture
def fake():
    """Inside this mode every call goes to torch.ops."""
    with FakeTensorMode() as mode:
        yield mode


def test_every_form_reaches_the_dispatcher(fake):
    x, w, out = torch.empty(3, 8), torch.empty(8), torch.empty(3, 8)
    values, indices = torch.empty(3, 2), torch.empty(3, 2, dtype=torch.int64)
    for y in (
        anyop.rms_norm(x, w), anyop.rms_norm(x, w, 1e-5), anyop.rms_norm(x=x, weight=w, eps=1),
        anyop.rms_norm(x, w, 1e-5), anyop.rms_norm(x, w, out=None),
    ):  # fmt: skip
        assert isinstance(y, FakeTensor) and y.shape == (3, 8)
    assert anyop.rms_norm(x, w, 1e-5, out=out) is out and anyop.rms_norm(x, w, out=out) is out
    for given in (
        anyop.topk(x, 2, out=(values, indices)), anyop.topk(x, 2, True, values, indices),
        anyop.topk(x, k=np.int32(2), values=values, indices=indices),
    ):  # fmt: skip
        assert given[0] is values and given[1] is indices
    found = anyop.topk(x, 2, values=values)
    assert found[0] is values and found[1].dtype == torch.int64
    for kind in ("float16", np.float16, np.dtype("float16"), torch.float16):
        assert anyop.cast(x, kind).dtype == torch.float16
    assert anyop.layer_norm(x, None, w).shape == (3, 8)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x, w: anyop.rms_norm(weight=w), TypeError, "^rms_norm: x is missing in rms_norm"),
        (lambda x, w: anyop.rms_norm(x, w, 1, None, 2), TypeError, "got 5 positional arguments"),
        (lambda x, w: anyop.rms_norm(x, w, epsilon=1), TypeError, "no argument 'epsilon'"),
        (lambda x, w: anyop.rms_norm(x, w, weight=w), TypeError, "weight is given twice"),
        (
            lambda x, w: anyop.rms_norm(x, np.ones(8, np.float32)),
            TypeError,
            "weight is a .*ndarray",
        ),
        (lambda x, w: anyop.rms_norm(x, w, "1"), TypeError, "eps is a str, expected float"),
        (lambda x, w: anyop.topk(x, 2.0), TypeError, "k is a float, expected int"),
        (lambda x, w: anyop.topk(x, 2, 1), TypeError, "largest is an int, expected bool"),
        (
            lambda x, w: anyop.cast(x, "float31"),
            TypeError,
            "dtype is .*expected (a )?dtype such as",
        ),
        (
            lambda x, w: anyop.topk(x, 2, out=(w,)),
            TypeError,
            "out must be a tuple of its 2 results",
        ),
        (lambda x, w: anyop.topk(x, 2, out=(w, w), values=w), TypeError, "values is given twice"),
        (lambda x, w: anyop.topk(x, 2, values=w), ValueError, "values has shape"),
        (lambda x, w: anyop.rms_norm(x, w, out=w), ValueError, "out has shape"),
        (
            lambda x, w: anyop.gelu(x, approximate=3),
            TypeError,
            "approximate is an int, expected str",
        ),
        (lambda x, w: anyop.rms_norm(x, w.double()), TypeError, "weight has dtype float64"),
    ],
)
def test_mistakes_are_told_as_the_function_tells_them(call, error, says, fake):
    with pytest.raises(error, match=says):
        call(torch.empty(3, 8), torch.empty(8))
    with pytest.raises(error, match=says), torch.utils._python_dispatch._disable_current_modes():
        call(torch.ones(3, 8), torch.ones(8))


@pytest.mark.parametrize("call", [anyop.rms_norm, anyop.aten.mul])
def test_symbolic_trace_is_told_what_to_do(call):
    with pytest.raises(TypeError, match=r"is a torch\.fx\.Proxy.*torch\.export.*torch\.ops\."):
        torch.fx.symbolic_trace(lambda x, w: call(x, w))
    traced = torch.fx.symbolic_trace(lambda x, w: torch.ops.anyop.rms_norm(x, w))
    x, w = torch.randn(3, 8), torch.randn(8)
    torch.testing.assert_close(traced(x, w), anyop.rms_norm(x, w))


def test_given_results_are_checked_before_one_is_written():
    """Under a mode results are computed anew and copied: never one over the other, and all or none."""
    generator = torch.Generator().manual_seed(0)
    grad_out, x = torch.randn(2, 3, generator=generator), torch.randn(2, 3, generator=generator)
    weight, memory = torch.randn(3, generator=generator), torch.zeros(9)
    whole, part = memory[:6].view(2, 3), memory[3:6]
    window, emptied = memory.as_strided((2, 3), (1, 1)), torch.zeros(3)
    emptied.untyped_storage().resize_(0)
    for grad_x, grad_weight, says in (
        (whole, part, "rms_norm_backward: grad_weight overlaps grad_x in memory"),
        (window, None, "rms_norm_backward: grad_x has sizes"),
        (whole, torch.zeros(4), "rms_norm_backward: grad_weight has shape"),
        (whole, emptied, "rms_norm_backward: grad_weight is larger than its storage"),  # SIGSEGV
        (whole, np.zeros(3), "rms_norm_backward: grad_weight is a numpy.ndarray"),
    ):
        with pytest.raises((TypeError, ValueError)) as error, FlopCounterMode(display=False):
            anyop.rms_norm_backward(grad_out, x, weight, grad_x=grad_x, grad_weight=grad_weight)
        assert str(error.value).startswith(says), error.value
        assert not memory.any(), says
    with FlopCounterMode(display=False):
        anyop.rms_norm_backward(grad_out, x, weight, grad_x=whole, grad_weight=memory[6:])
    expected = anyop.rms_norm_backward(grad_out, x, weight)
    assert torch.equal(whole, expected[0]) and torch.equal(memory[6:], expected[1])


def test_results_that_are_conj_or_neg_views_are_written():
    """torch's fallback for them said "Expected Tensor but got None"."""
    x = torch.linspace(-1, 1, 6).view(2, 3)
    negative = torch.zeros(2, 3, dtype=torch.complex64).conj().imag
    assert negative.is_neg() and anyop.relu(x, out=negative) is negative
    assert torch.equal(negative.resolve_neg(), torch.relu(x))
    indices = torch.zeros(2, 1, dtype=torch.int64)
    values = torch.zeros(2, 1, dtype=torch.complex64).conj().imag
    anyop.topk(x, 1, values=values, indices=indices)
    assert torch.equal(values.resolve_neg(), x[:, 2:]) and (indices == 2).all()
