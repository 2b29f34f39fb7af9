# SPDX-License-Identifier: Apache-2.0
"""masked_mean in float64; what is masked counts for nothing, whatever it holds."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, mask):
    keep = (mask != 0)[..., None]
    return np.where(keep, x, 0).sum(1) / np.maximum(keep.sum(1), 1)


def test_masked_tokens_may_hold_anything():
    x = np.ones((2, 4, 3), np.float32)
    x[0, 2], x[1] = np.nan, np.inf
    mask = np.array([[1, 1, 0, 1], [0, 0, 0, 0]], bool)
    np.testing.assert_array_equal(anyop.masked_mean(x, mask), [[1, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("T", "D"), [(1, 1025), (63, 1024), (64, 7), (65, 2049), (3000, 33)])
def test_sizes_around_tiles(dtype, T, D):
    """Features in more than one tile, tokens in more than one turn; a mean of many tokens keeps its precision."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(T)
    x, mask = (random.standard_normal((2, T, D)) + 3).astype(dtype), random.random((2, T)) < 0.6
    expected = reference(x.astype(float), mask)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype.name]
    assert (
        np.abs(anyop.masked_mean(x, mask).astype(float) - expected)
        <= limit * (1 + np.abs(expected))
    ).all()
