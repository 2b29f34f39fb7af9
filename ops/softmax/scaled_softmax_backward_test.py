# SPDX-License-Identifier: Apache-2.0
"""scaled_softmax_backward in float64; sizes around blocks, of masked rows too."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(grad_out, out, scale):
    with np.errstate(all="ignore"):
        return scale * out * (grad_out - (grad_out * out).sum(-1, keepdims=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("D", [1023, 8193, 20000])
def test_sizes_around_blocks(dtype, D):
    random = np.random.default_rng(D)
    grad, x = ((random.standard_normal((3, D)) * 3).astype(dtype) for _ in range(2))
    mask = random.random((3, D)) < 0.5
    mask[1] = True
    out = anyop.scaled_masked_softmax(x, mask, 0.5)
    expected = reference(grad.astype(float), out.astype(float), 0.5)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-14}[dtype]
    found = anyop.scaled_softmax_backward(grad, out, 0.5).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()
    assert (found[mask] == 0).all()
