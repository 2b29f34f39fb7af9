# SPDX-License-Identifier: Apache-2.0
"""l2_normalize in float64; rows shorter than eps, and of zeros."""

import anyop
import numpy as np


def reference(x, eps):
    norm = np.sqrt((x * x).sum(-1, keepdims=True))
    with np.errstate(all="ignore"):
        return x / np.maximum(norm, eps)


def test_short_rows_are_divided_by_eps():
    x = np.zeros((3, 20), np.float32)
    x[1, 0] = 1e-3
    x[2, 3] = 2
    expected = reference(x.astype(float), 0.5)
    np.testing.assert_allclose(anyop.l2_normalize(x, eps=0.5), expected, rtol=1e-6)
    assert not anyop.l2_normalize(x)[0].any()
