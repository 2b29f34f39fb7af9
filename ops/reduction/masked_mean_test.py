# SPDX-License-Identifier: Apache-2.0
"""masked_mean in float64; what is masked counts for nothing, whatever it holds."""

import numpy as np

import anyop


def reference(x, mask):
    keep = (mask != 0)[..., None]
    return np.where(keep, x, 0).sum(1) / np.maximum(keep.sum(1), 1)


def test_masked_tokens_may_hold_anything():
    x = np.ones((2, 4, 3), np.float32)
    x[0, 2], x[1] = np.nan, np.inf
    mask = np.array([[1, 1, 0, 1], [0, 0, 0, 0]], bool)
    np.testing.assert_array_equal(anyop.masked_mean(x, mask), [[1, 1, 1], [0, 0, 0]])
