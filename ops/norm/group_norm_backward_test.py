# SPDX-License-Identifier: Apache-2.0
"""group_norm_backward in float64; gradcheck from torch of both orders of channels, every choice of gradients."""

import itertools

import anyop
import numpy as np
import pytest


def reference(grad_out, x, mean, rstd, groups, weight, bias, activation):
    N, C = x.shape[:2]
    split = (N, groups, C // groups, -1)
    mean, rstd = (v.reshape(N, groups, 1, 1) for v in (mean, rstd))
    w = np.ones(C) if weight is None else weight
    with np.errstate(all="ignore"):
        h = ((x.reshape(*split[:3], -1) - mean) * rstd).reshape(N, C, -1)
        z = h * w[:, None] + (0 if bias is None else bias[:, None])
        s = 1 / (1 + np.exp(-z))
        d = grad_out.reshape(N, C, -1) * (s * (1 + z * (1 - s)) if activation == "silu" else 1)
        count = max(h.shape[2] * (C // groups), 1)
        inner, h_split = (d * w[:, None]).reshape(split), h.reshape(split)
        a = inner.sum((2, 3), keepdims=True) / count
        b = (inner * h_split).sum((2, 3), keepdims=True) / count
        grad_x = (rstd * (inner - a - h_split * b)).reshape(x.shape)
    return grad_x, (d * h).sum((0, 2)), d.sum((0, 2))


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("order", ["", "_channels_last"])
def test_gradients_from_torch(order, activation):
    torch = pytest.importorskip("torch")
    import anyop.torch

    shape = (2, 5, 3, 6) if order else (2, 6, 5, 3)
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in (shape, (6,), (6,))]
    norm = getattr(anyop, "group_norm" + order)
    assert torch.autograd.gradcheck(
        lambda x, w, b: norm(x, 3, w, b, activation=activation)[0], tensors
    )


@pytest.mark.parametrize("order", ["", "_channels_last"])
def test_every_choice_of_gradients(order):
    """And many pixels, as the float64 gradient has them."""
    random = np.random.default_rng(0)
    x, grad_out = (random.standard_normal((3, 700, 24)) for _ in range(2))
    if not order:
        x, grad_out = (np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in (x, grad_out))
    weight, bias = (random.standard_normal(24) for _ in range(2))
    forward = getattr(anyop, "group_norm" + order)
    backward = getattr(anyop, f"group_norm{order}_backward")
    results = {}
    for dtype in ("float64", "float32"):
        given, x_, w, b = (a.astype(dtype) for a in (grad_out, x, weight, bias))
        _, mean, rstd = forward(x_, 4, w, b)
        call = (given, x_, mean, rstd, 4, w, b)
        results[dtype] = backward(*call, activation="silu")
        for wanted in itertools.product([False, True], repeat=3):
            names = ("grad_x", "grad_weight", "grad_bias")
            left = {n: False for n, keep in zip(names, wanted, strict=True) if not keep}
            some = backward(*call, activation="silu", **left)
            for one, whole, keep in zip(some, results[dtype], wanted, strict=True):
                assert (one is not None) == keep
                assert one is None or one.tobytes() == whole.tobytes()
    for single, exact in zip(results["float32"], results["float64"], strict=True):
        np.testing.assert_allclose(single, exact, rtol=1e-5, atol=2e-5)
