# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy on a GPU: several blocks of classes, targets outside, one graph for other targets, memory."""

from __future__ import annotations

from typing import Any

import anyop
import anyop.torch
import pytest
from on_cuda import DEVICE, same_bits, torch

# Of a loss; of gradients, over their root mean square: half types round the gradient of the logits.
LIMITS = {
    "float64": (1e-12, 1e-11), "float32": (2e-6, 1e-4), "float16": (2e-6, 4e-3), "bfloat16": (2e-6, 3e-2),
}  # fmt: skip
VALUES: dict[str, Any] = {"label_smoothing": 0.1, "softcap": 20.0, "z_loss": 1e-3}


def made(rows: int, V: int, K: int, dtype: str) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    shapes = ((rows, K), (V, K), (V,))
    x, weight, bias = (torch.randn(s, device=DEVICE).to(getattr(torch, dtype)) for s in shapes)
    target = torch.randint(0, V, (rows,), device=DEVICE)
    target[::7] = -100
    return [x, weight, target, bias]


def exact(x, weight, target, bias, grad_loss, grad_lse):
    """Loss, lse and gradients in float64, by torch."""
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    logits = torch.nn.functional.linear(leaves[0], leaves[1], leaves[2])
    logits = VALUES["softcap"] * torch.tanh(logits / VALUES["softcap"])
    lse = logits.logsumexp(-1)
    loss = torch.nn.functional.cross_entropy(
        logits, target, reduction="none", label_smoothing=VALUES["label_smoothing"]
    )
    loss = loss + torch.where(target == -100, 0, VALUES["z_loss"] * lse**2)
    whole = (loss * grad_loss).sum() + (lse * grad_lse).sum()
    return loss, lse, torch.autograd.grad(whole, leaves)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("rows", "V", "K"), [(5000, 9001, 48), (17000, 2504, 40), (1, 33, 8)])
def test_several_blocks(dtype, rows, V, K):
    """A block has 3,072 classes of 5,000 rows and 1,024 of 17,000; rows of V elements are aligned or not."""
    x, weight, target, bias = made(rows, V, K, dtype)
    runs = []
    for _ in range(2):
        loss, lse = anyop.linear_cross_entropy(x, weight, target, bias, **VALUES)
        torch.manual_seed(0)
        grad_loss, grad_lse = (torch.randn_like(lse) for _ in range(2))
        gradients = anyop.linear_cross_entropy_backward(
            x, weight, target, lse, grad_loss, grad_lse, bias, **VALUES
        )
        runs.append((loss, lse, *gradients))
    assert all(map(same_bits, *runs))
    expected = exact(x, weight, target, bias, grad_loss.double(), grad_lse.double())
    limit, of_gradients = LIMITS[dtype]
    for found, other in zip((loss, lse), expected):
        torch.testing.assert_close(found.double(), other, rtol=limit, atol=10 * limit)
    for found, other in zip(gradients, expected[2], strict=True):
        error = (found.double() - other).square().mean().sqrt() / other.square().mean().sqrt()
        assert found.dtype == x.dtype and error <= of_gradients


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_targets_outside_are_not_read(index):
    x, weight, target, bias = made(70, 1000, 16, "bfloat16")
    target[[3, 20, 69]] = torch.tensor([1000, -1, 2**31 - 1], device=DEVICE)
    target = target.to(getattr(torch, index))
    loss, lse = anyop.linear_cross_entropy(x, weight, target, bias)
    assert loss.isnan().nonzero().flatten().tolist() == [3, 20, 69] and lse.isfinite().all()
    ones = torch.ones_like(loss)
    grad_x, _, _ = anyop.linear_cross_entropy_backward(x, weight, target, lse, ones, None, bias)
    assert grad_x.isnan().any(1).nonzero().flatten().tolist() == [3, 20, 69]


def test_one_graph_for_other_targets():
    """Forward and backward of autograd, captured once; a graph's memory is its own."""
    x, weight, target, bias = made(3000, 6000, 32, "bfloat16")
    leaves = [t.requires_grad_() for t in (x, weight, bias)]

    def step():
        loss, _ = anyop.linear_cross_entropy(x, weight, target, bias, **VALUES)
        return loss, *torch.autograd.grad(loss.sum(), leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for seed in range(3):
        torch.manual_seed(seed)
        target.copy_(torch.randint(0, 6000, target.shape, device=DEVICE))
        graph.replay()
        assert all(map(same_bits, found, step()))


def test_memory_is_not_that_of_the_logits():
    """4 GiB of logits in float32; the device has at most 400 MiB less behind forward and backward."""
    x, weight, target, _ = made(8192, 131072, 64, "bfloat16")
    small = anyop.linear_cross_entropy(x[:64], weight[:64], target[:64] % 64)[1]
    anyop.linear_cross_entropy_backward(x[:64], weight[:64], target[:64] % 64, small, small)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    loss, lse = anyop.linear_cross_entropy(x, weight, target)
    anyop.linear_cross_entropy_backward(x, weight, target, lse, torch.ones_like(loss))
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] <= 400 << 20
