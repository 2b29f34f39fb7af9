# SPDX-License-Identifier: Apache-2.0
"""l2_normalize_backward in float64; rows shorter than eps."""

import anyop
import numpy as np


def reference(grad_out, x, eps):
    square = (x * x).sum(-1, keepdims=True)
    norm = np.sqrt(square)
    with np.errstate(all="ignore"):
        share = np.where(norm < eps, 0, (grad_out * x).sum(-1, keepdims=True) / square)
        return (grad_out - x * share) / np.where(norm < eps, eps, norm)


def test_short_rows_are_divided_by_eps():
    x, grad = np.zeros((3, 20), np.float32), np.ones((3, 20), np.float32)
    x[1, 0], x[2, 3] = 1e-3, 2
    found = anyop.l2_normalize_backward(grad, x, eps=0.5)
    np.testing.assert_allclose(found, reference(grad, x.astype(float), 0.5), rtol=1e-6)
    np.testing.assert_array_equal(found[:2], 2)
