# SPDX-License-Identifier: Apache-2.0
"""torch.compile(fullgraph=True): the same numbers, forward and backward; one compilation for all batch sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import anyop.torch
import numpy as np
import prepared
import pytest
import torch
import torch._dynamo
from anyop import testing
from anyop.testing.torch_cases import torch_calls
from torch._dynamo.testing import CompileCounter
from torch.utils._pytree import tree_leaves

# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops") if s.results
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def block(x, w, v, bias):
    """Code of a model: calls in several forms, some of torch's own between them."""
    y = anyop.rms_norm(x, w, eps=1e-5)
    y = anyop.linear(y, v, bias)
    y = anyop.silu_and_mul(y) * 2
    return anyop.add(anyop.gelu(y, approximate="tanh"), x.sum(-1, keepdim=True), alpha=0.5)


def torch_block(x, w, v, bias):
    F = torch.nn.functional
    y = F.linear(F.rms_norm(x, w.shape, w, 1e-5), v, bias)
    a, b = y.chunk(2, -1)
    return F.gelu(F.silu(a) * b * 2, approximate="tanh") + 0.5 * x.sum(-1, keepdim=True)


BLOCK = ((4, 9, 16), (16,), (24, 16), (24,))


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_every_operator_in_one_graph(subject):
    """By its function and by torch.ops, traced with symbolic sizes; the results bit for bit."""
    label, args, kwargs = next(torch_calls(subject, ("base",)))
    op = getattr(getattr(torch.ops, subject.metadata["namespace"]), subject.metadata["name"])
    function = subject.function
    expected = tree_leaves(function(*args, **kwargs))
    for call in (function, op):
        counter = CompileCounter()
        compiled = torch.compile(
            lambda *a, call=call, **k: call(*a, **k), fullgraph=True, dynamic=True, backend=counter
        )
        found = tree_leaves(compiled(*args, **kwargs))
        assert counter.frame_count == 1 and counter.op_count >= 1, label
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), label


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_inductor_forward_and_backward(dynamic):
    args = [tensor.requires_grad_() for tensor in tensors(*BLOCK)]
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic)
    found, expected = compiled(*args), torch_block(*args)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    grads = torch.autograd.grad(found.square().sum(), args)
    wanted = torch.autograd.grad(expected.square().sum(), args)
    for a, b in zip(grads, wanted):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_a_new_batch_size_compiles_nothing():
    """Sizes are chosen apart: dimensions of equal size would share a symbol."""
    counter = CompileCounter()
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch, rows in ((4, 9), (5, 11), (31, 2), (7, 130)):
            args = tensors((batch, rows, 16), *BLOCK[1:])
            torch.testing.assert_close(compiled(*args), torch_block(*args), atol=1e-5, rtol=1e-5)
    assert counter.frame_count == 1


def test_a_new_batch_size_compiles_nothing_with_gradients():
    """Marked dynamic; forward and backward traced by AOTAutograd once."""
    traced = []

    def keep(graph, example):
        traced.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph

    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(block, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (4, 5, 31):
            args = [tensor.requires_grad_() for tensor in tensors((batch, 9, 16), *BLOCK[1:])]
            torch._dynamo.mark_dynamic(args[0], 0)
            found = torch.autograd.grad(compiled(*args).square().sum(), args)
            wanted = torch.autograd.grad(torch_block(*args).square().sum(), args)
            for a, b in zip(found, wanted):
                torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
    assert len(traced) == 2, "one forward, one backward"


def test_every_form_of_call_is_traced():
    x, w = tensors((3, 8), (8,))
    place, values, indices = (
        torch.empty(3, 8),
        torch.empty(3, 2),
        torch.empty(3, 2, dtype=torch.int64),
    )

    def calls(x, w, place, values, indices):
        returned = anyop.rms_norm(x, w, 1e-6, out=place)
        both = anyop.topk(x, 2, out=(values, indices))
        named = anyop.topk(x, k=2, values=None)
        kinds = [anyop.cast(x, kind) for kind in ("float64", torch.float16, np.float32)]
        return (
            returned, *both, *named, *kinds, anyop.rms_norm(weight=w, x=x), anyop.relu(x, None),
            anyop.rms_norm(x.unsqueeze(0), w)[0],
        )  # fmt: skip

    compiled = torch.compile(calls, fullgraph=True, backend="aot_eager")
    found = compiled(x, w, place, values, indices)
    assert found[0] is place and found[1] is values and found[2] is indices
    expected = calls(x, w, place.clone(), values.clone(), indices.clone())
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x, w: anyop.rms_norm(x, w[1:]), ValueError, "rms_norm: weight has shape"),
        (lambda x, w: anyop.rms_norm(x, w.double()), TypeError, "weight has dtype float64"),
        (lambda x, w: anyop.rms_norm(weight=w), TypeError, "x is missing"),
        (lambda x, w: anyop.rms_norm(x, w, epsilon=1), TypeError, "no argument 'epsilon'"),
        (lambda x, w: anyop.rms_norm(x, w, 1, None, 2), TypeError, "positional arguments"),
        (lambda x, w: anyop.rms_norm(x, w, x=x), TypeError, "x is given twice"),
        (lambda x, w: anyop.topk(x, 9), ValueError, "expected k <= D"),
        (lambda x, w: anyop.topk(x, 1.5), TypeError, "k is a float"),
    ],
)
def test_mistakes_are_told_while_tracing(call, error, says):
    """The text of the function itself, within what torch.compile says."""
    x, w = tensors((3, 8), (8,))
    with pytest.raises(error, match=says):
        call(x, w)
    with pytest.raises(Exception, match=says):
        torch.compile(call, fullgraph=True, backend="eager")(x, w)


def test_dynamo_is_not_imported_before_it_is_needed():
    program = (
        "import sys, torch, anyop.torch\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "f = torch.compile(lambda x: anyop.relu(x) + 1, fullgraph=True, backend='eager')\n"
        "assert f(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]\n"
        "assert 'torch._dynamo' in sys.modules\n"
    )
    prepared.run("torch", [sys.executable, "-c", program], check=True, timeout=300)
