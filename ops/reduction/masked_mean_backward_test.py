# SPDX-License-Identifier: Apache-2.0
"""masked_mean_backward in float64; sequences without tokens."""

import anyop
import numpy as np


def reference(grad_out, mask):
    keep = (mask != 0)[..., None]
    share = grad_out / np.maximum(keep.sum(1), 1)
    return np.where(keep, share[:, None], 0)


def test_tokens_that_do_not_count_have_gradient_zero():
    grad = np.array([[6.0, np.inf], [np.nan, 1.0]], np.float32)
    mask = np.array([[1, 0, 1], [0, 0, 0]], bool)
    found = anyop.masked_mean_backward(grad, mask)
    inf = np.inf
    np.testing.assert_array_equal(found, [[[3, inf], [0, 0], [3, inf]], np.zeros((3, 2))])
