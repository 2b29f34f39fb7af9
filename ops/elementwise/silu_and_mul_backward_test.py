# SPDX-License-Identifier: Apache-2.0
"""silu_and_mul_backward in float64; rows around blocks."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(grad_out, x):
    gate, value = np.split(x, 2, axis=-1)
    near = np.clip(gate, -700, 700)  # beyond, the sigmoid is 0 or 1
    rest = 1 / (1 + np.exp(near))
    slope = (1 - rest) + near * rest * (1 - rest)
    with np.errstate(all="ignore"):
        return np.concatenate([grad_out * value * slope, grad_out * (gate * (1 - rest))], -1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("D", [1023, 1025, 8193])
def test_sizes_around_blocks(dtype, D):
    dtype = np.dtype(dtype)
    random = np.random.default_rng(D)
    grad, x = (random.standard_normal((3, n)).astype(dtype) for n in (D, 2 * D))
    expected = reference(grad.astype(float), x.astype(float))
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 2e-15}[dtype.name]
    found = anyop.silu_and_mul_backward(grad, x).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()
