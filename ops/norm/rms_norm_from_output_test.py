# SPDX-License-Identifier: Apache-2.0
"""rms_norm_from_output in float64; its gradient in place of x."""

import anyop
import numpy as np
import pytest


def reference(x, weight, eps, weight_offset):
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    if not x.shape[-1]:
        rstd = np.full_like(rstd, 1 / np.sqrt(eps))
    return x * rstd * ((1 if weight is None else weight) + weight_offset), rstd


def test_gradient_equals_that_of_rms_norm():
    """x may change before the gradient is asked for."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    given = torch.randn(3, 7, 50), torch.randn(50) + 3
    expected = [value.clone().requires_grad_() for value in given]
    grad = torch.randn(3, 7, 50)
    anyop.rms_norm(*expected, 1e-5, weight_offset=0.5).backward(grad)
    x, weight = (value.clone().requires_grad_() for value in given)
    out = anyop.rms_norm_from_output(x, weight, 1e-5, weight_offset=0.5)[0]
    with torch.no_grad():
        x.zero_()
    out.backward(grad)
    torch.testing.assert_close(x.grad, expected[0].grad)
    torch.testing.assert_close(weight.grad, expected[1].grad)
