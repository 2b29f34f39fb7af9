# SPDX-License-Identifier: Apache-2.0
"""silu_backward in float64; the tails."""

import anyop
import numpy as np
import pytest


def reference(grad_out, x):
    near = np.clip(x, -700, 700)  # beyond, the derivative is 0 or 1
    rest = 1 / (1 + np.exp(near))
    return grad_out * ((1 - rest) + near * rest * (1 - rest))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tails_and_dense_points(dtype):
    x = np.concatenate([np.linspace(-90, 90, 40001), [-1e30, 1e30, 0.0, np.inf, -np.inf]])
    x = x.astype(dtype)
    error = np.abs(anyop.silu_backward(np.ones_like(x), x) - reference(1.0, x.astype(float)))
    # In float64 it is the reference that cancels.
    assert error.max() < {"float32": 1e-6, "float64": 1e-14}[dtype]
    bad = np.array([np.nan], dtype)
    assert np.isnan(anyop.silu_backward(np.ones_like(bad), bad))
