# SPDX-License-Identifier: Apache-2.0
"""scaled_upper_triang_masked_softmax_backward in float64; nothing above the diagonal is read."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(grad_out, out, scale):
    grad, y = np.tril(grad_out), np.tril(out)
    with np.errstate(all="ignore"):
        return np.tril(scale * y * (grad - (grad * y).sum(-1, keepdims=True)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("S", [1, 65, 1100])
def test_sizes_around_blocks(dtype, S):
    random = np.random.default_rng(S)
    grad, x = ((random.standard_normal((2, S, S)) * 3).astype(dtype) for _ in range(2))
    out = anyop.scaled_upper_triang_masked_softmax(x, 0.5)
    expected = reference(grad.astype(float), out.astype(float), 0.5)
    above = np.triu(np.ones((S, S), bool), 1)
    grad[:, above] = out[:, above] = np.nan
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-14}[dtype]
    found = anyop.scaled_upper_triang_masked_softmax_backward(grad, out, 0.5).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()
    assert (found[:, above] == 0).all()
