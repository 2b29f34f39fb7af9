# SPDX-License-Identifier: Apache-2.0
"""cast_backward: the gradient has the dtype of x."""

import anyop
import numpy as np


def reference(grad_out, x):
    return grad_out


def test_equals_cast():
    grad = np.random.default_rng(0).standard_normal(3000)
    x = np.zeros(3000, np.float16)
    np.testing.assert_array_equal(
        anyop.cast_backward(grad, x), anyop.cast(grad.astype(np.float32), "float16")
    )
