# SPDX-License-Identifier: Apache-2.0
"""grouped_linear_backward in float64: experts without rows, rows without experts, bad offsets."""

import anyop
import numpy as np
import pytest
from grouped_linear_test import segments


def reference(grad_out, x, weight, offsets):
    grad_x, grad_weight = np.zeros(x.shape), np.zeros(weight.shape)
    grad_bias = np.zeros(weight.shape[:2])
    with np.errstate(all="ignore"):
        for e, rows in segments(offsets, len(x)):
            grad_x[rows] = grad_out[rows] @ weight[e]
            grad_weight[e] = grad_out[rows].T @ x[rows]
            grad_bias[e] = grad_out[rows].sum(0)
    return grad_x, grad_weight, grad_bias


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "offsets", [[0, 0, 70, 70, 300], [5, 300, 2, -1, 900], [9, 10, 10, 11, 12]]
)
def test_exactly(dtype, offsets):
    """Small integers: sums have no rounding; each gradient alone is the same."""
    random = np.random.default_rng(1)
    shapes = ((300, 24), (300, 40), (4, 24, 40))
    grad, x, weight = (random.integers(-1, 2, s).astype(dtype) for s in shapes)
    offsets = np.array(offsets, np.int32)
    expected = reference(*(a.astype(float) for a in (grad, x, weight)), offsets)
    names = ["grad_x", "grad_weight", "grad_bias"]
    for at, exact in enumerate(expected):
        unwanted = {name: False for name in names if name != names[at]}
        for more in ({}, unwanted):
            found = anyop.grouped_linear_backward(grad, x, weight, offsets, **more)[at]
            np.testing.assert_array_equal(found, exact)
