# SPDX-License-Identifier: Apache-2.0
"""layer_norm_from_output in float64; its gradient in place of x."""

import anyop
import numpy as np
import pytest


def reference(x, weight, bias, eps, weight_offset):
    with np.errstate(all="ignore"):
        centred = x - x.mean(-1, keepdims=True)
        rstd = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    if not x.shape[-1]:
        rstd = np.full_like(rstd, 1 / np.sqrt(eps))
    out = centred * rstd * ((1 if weight is None else weight) + weight_offset)
    return out if bias is None else out + bias, rstd


def test_gradient_equals_that_of_layer_norm():
    """x may change before the gradient is asked for."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    given = torch.randn(3, 7, 50), torch.randn(50) + 3, torch.randn(50)
    expected = [value.clone().requires_grad_() for value in given]
    grad = torch.randn(3, 7, 50)
    anyop.layer_norm(*expected, weight_offset=0.5).backward(grad)
    found = [value.clone().requires_grad_() for value in given]
    out = anyop.layer_norm_from_output(*found, weight_offset=0.5)[0]
    with torch.no_grad():
        found[0].zero_()
    out.backward(grad)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
