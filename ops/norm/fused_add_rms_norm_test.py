# SPDX-License-Identifier: Apache-2.0
"""fused_add_rms_norm in float64; in place, and its gradients."""

import anyop
import numpy as np
import pytest


def reference(x, residual, weight, eps, weight_offset):
    with np.errstate(all="ignore"):
        total = x + residual
        centred = total
        out = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
        out = out * ((1 if weight is None else weight) + weight_offset)
    return out, total


def test_the_rounded_sum_is_normalised():
    """x + residual is x here: in float32 it would not be."""
    x = np.full((1, 8), 2048, np.float16)
    x[0, :4] = -2048
    residual = np.where(x > 0, 0.5, -0.5).astype(np.float16)
    out, total = anyop.fused_add_rms_norm(x, residual)
    np.testing.assert_array_equal(total, x)
    np.testing.assert_array_equal(out, anyop.rms_norm(x))


def test_in_place():
    random = np.random.default_rng(1)
    x, residual, weight = (
        random.standard_normal(s).astype("f4") for s in [(5, 33), (5, 33), (33,)]
    )
    expected = anyop.fused_add_rms_norm(x, residual, weight)
    for out, total in ((x, residual), (residual, x)):
        given, more = x.copy(), residual.copy()
        out, total = (given, more) if out is x else (more, given)
        anyop.fused_add_rms_norm(given, more, weight, out=out, sum=total)
        np.testing.assert_array_equal(out, expected[0])
        np.testing.assert_array_equal(total, expected[1])


def test_gradients_in_torch():
    """Also of a residual stream that goes on, and of results that nothing depends on."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    values = torch.randn(3, 4, 50, dtype=torch.float64), torch.randn(3, 4, 50, dtype=torch.float64)
    values = [value.requires_grad_() for value in (*values, torch.randn(50, dtype=torch.float64))]

    def both(x, residual, weight):
        out, total = anyop.fused_add_rms_norm(x, residual, weight, weight_offset=0.5)
        return out * 2 + total.sin() + x

    assert torch.autograd.gradcheck(both, values)
    for place in (0, 1):
        assert torch.autograd.gradcheck(lambda *v, p=place: anyop.fused_add_rms_norm(*v)[p], values)
