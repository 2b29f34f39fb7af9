# SPDX-License-Identifier: Apache-2.0
"""Cross entropy on a GPU: rows in registers and read again, in place, targets outside, a graph. Focal loss."""

from __future__ import annotations

from typing import Any

import anyop
import anyop.torch
import pytest
from anyop.torch.nn import CrossEntropyLoss
from on_cuda import DEVICE, same_bits, torch

VALUES: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 1e-3}
EPS = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def made(rows: int, V: int, dtype: str):
    torch.manual_seed(V)
    x = (3 * torch.randn(rows, V, device=DEVICE)).to(getattr(torch, dtype))
    target = torch.randint(0, V, (rows,), device=DEVICE)
    target[::7] = -100
    return x, target


def exact(x, target, grad_loss):
    """Loss, lse and gradient in float64, by torch."""
    leaf = x.double().clone().requires_grad_()
    lse = leaf.logsumexp(-1)
    loss = torch.nn.functional.cross_entropy(leaf, target, reduction="none", label_smoothing=0.1)
    loss = loss + torch.where(target == -100, 0, 1e-3 * lse**2)
    return loss.detach(), lse.detach(), torch.autograd.grad((loss * grad_loss).sum(), leaf)[0]


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("V", [1000, 1001, 8192, 32000, 65536, 128256, 151936, 300000])
def test_rows_of_every_length(V, dtype):
    x, target = made(150, V, dtype)
    loss, lse = anyop.cross_entropy(x, target, **VALUES)
    given = torch.rand_like(loss)
    grad = anyop.cross_entropy_backward(x, target, lse, given, **VALUES)
    both = anyop.cross_entropy_with_grad(x, target, **VALUES)
    expected = exact(x, target, given.double())
    limit = min(EPS[dtype], 2e-6)
    torch.testing.assert_close(loss.double(), expected[0], rtol=limit, atol=5 * limit)
    torch.testing.assert_close(lse.double(), expected[1], rtol=limit, atol=5 * limit)
    torch.testing.assert_close(both[0].double(), expected[0], rtol=limit, atol=5 * limit)
    small = max(limit, 1e-7 if dtype == "float16" else 0)  # denormals
    torch.testing.assert_close(grad.double(), expected[2], rtol=EPS[dtype], atol=small)
    whole = exact(x, target, torch.ones_like(given).double())[2]
    torch.testing.assert_close(both[1].double(), whole, rtol=EPS[dtype], atol=small)
    again = anyop.cross_entropy_with_grad(x, target, **VALUES)
    assert same_bits(again[0], both[0]) and same_bits(again[1], both[1])
    copy = x.clone()
    anyop.cross_entropy_backward(copy, target, lse, given, **VALUES, grad_x=copy)
    assert same_bits(copy, grad)
    in_place = anyop.cross_entropy_with_grad(x, target, **VALUES, grad_x=x)
    assert same_bits(x, both[1]) and same_bits(in_place[0], both[0])


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("V", [1000, 1001, 128256])
def test_targets_outside_are_not_read(V, index):
    x, target = made(40, V, "bfloat16")
    target[[3, 20, 39]] = torch.tensor([V, -1, 2**31 - 1], device=DEVICE)
    target = target.to(getattr(torch, index))
    loss, lse = anyop.cross_entropy(x, target)
    assert loss.isnan().nonzero().flatten().tolist() == [3, 20, 39] and lse.isfinite().all()
    grad = anyop.cross_entropy_backward(x, target, lse, torch.ones_like(loss))
    both, over = anyop.cross_entropy_with_grad(x, target)
    assert both.isnan().nonzero().flatten().tolist() == [3, 20, 39]
    for found in (grad, over):
        assert found.isfinite().all() and not found[[3, 20, 39, 0]].any() and found[1].any()


def test_a_graph_of_the_layer_in_place():
    """Captured once with its backward, for other logits and another number from above."""
    x, target = made(64, 32000, "bfloat16")
    hidden, factor = x.clone().requires_grad_(), torch.ones((), device=DEVICE)
    layer = CrossEntropyLoss(inplace=True, **VALUES)

    def step():
        loss = layer(hidden * 1, target)
        return loss.detach(), *torch.autograd.grad(loss * factor, hidden)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for number in (1.0, 1024.0):
        with torch.no_grad():
            hidden.copy_(x.flip(0) * number**0.1)
        factor.fill_(number)
        graph.replay()
        assert all(map(same_bits, found, step()))


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("V", [88, 91])
def test_focal_loss(V, dtype):
    """More rows than blocks; by the aten formula in float64."""
    torch.manual_seed(0)
    x = (2 * torch.randn(40000, V, device=DEVICE)).to(getattr(torch, dtype))
    target = torch.randint(-2, 81, (40000,), device=DEVICE)
    wide = torch.float64 if dtype == "float64" else torch.float32
    positives = torch.tensor(123.0, device=DEVICE, dtype=wide)
    found = anyop.focal_loss(x, target, positives, 81, smoothing=0.1)
    with anyop.use("aten"):
        expected = anyop.focal_loss(x.double(), target, positives.double(), 81, smoothing=0.1)
    limit = 1e-11 if dtype == "float64" else 1e-5
    torch.testing.assert_close(found[0].double(), expected[0], rtol=limit, atol=0)
    torch.testing.assert_close(
        found[1].double(), expected[1], rtol=EPS[dtype], atol=min(EPS[dtype], 2e-6)
    )
    again = anyop.focal_loss(x, target, positives, 81, smoothing=0.1)
    assert all(map(same_bits, found, again))
    target[5] = 81
    loss, partial = anyop.focal_loss(x, target, positives, 81)
    assert loss.isnan() and not partial[5].any() and partial.isfinite().all()
