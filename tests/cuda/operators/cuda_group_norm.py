# SPDX-License-Identifier: Apache-2.0
"""group_norm and group_norm_channels_last on a GPU, with their gradients: diffusion's shapes, odd ones, many images."""

from __future__ import annotations

import anyop
import anyop.torch
import pytest
from on_cuda import DEVICE, same_bits, torch

EPS = {"float64": 1e-12, "float32": 5e-6, "float16": 1e-3, "bfloat16": 8e-3}
SHAPES = [
    (4, 320, 64, 64, 32), (2, 1280, 16, 16, 32), (2, 512, 128, 128, 32), (3, 40, 7, 9, 4), (2, 33, 5, 5, 11),
    (70000, 8, 1, 2, 2), (1, 4, 600, 700, 1), (2, 4104, 8, 8, 27),
]  # fmt: skip


def exact(x, weight, bias, groups, act, given):
    """By torch in float64: the result and the gradients."""
    leaves = [t.double().clone().requires_grad_() for t in (x, weight, bias)]
    out = torch.nn.functional.group_norm(leaves[0], groups, leaves[1], leaves[2], 1e-5)
    out = torch.nn.functional.silu(out) if act == "silu" else out
    return out.detach(), torch.autograd.grad(out, leaves, given.double())


@pytest.mark.parametrize("act", ["none", "silu"])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_beside_torch(shape, last, dtype, act):
    """The same bits twice and in place; gradients over their root mean square."""
    *sizes, groups = shape
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    # Around 0: sums of a gradient over many images stay in float16's range.
    x, given = ((torch.randn(sizes, device=DEVICE) + mean).to(kind) for mean in (0.5, 0))
    weight, bias = (torch.randn(sizes[1], device=DEVICE).to(kind) for _ in range(2))
    expected, gradients = exact(x, weight, bias, groups, act, given)
    forward, backward = anyop.group_norm, anyop.group_norm_backward
    if last:
        forward, backward = anyop.group_norm_channels_last, anyop.group_norm_channels_last_backward
        x, given = (t.permute(0, 2, 3, 1).contiguous() for t in (x, given))
        expected = expected.permute(0, 2, 3, 1)
        gradients = (gradients[0].permute(0, 2, 3, 1), *gradients[1:])
    results = [forward(x, groups, weight, bias, activation=act) for _ in range(2)]
    assert all(map(same_bits, *results))
    out, mean, rstd = results[0]
    limit = EPS[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=limit, atol=4 * limit)
    call = (given, x, mean, rstd, groups, weight, bias)
    found, again = (backward(*call, activation=act) for _ in range(2))
    assert all(map(same_bits, found, again))
    for one, other in zip(found, gradients, strict=True):
        error = (one.double() - other).square().mean().sqrt() / other.square().mean().sqrt()
        assert error <= (1e-10 if dtype == "float64" else max(limit, 2e-5))
    over = forward(x, groups, weight, bias, activation=act, out=x)
    assert same_bits(x, out) and same_bits(over[1], mean)
