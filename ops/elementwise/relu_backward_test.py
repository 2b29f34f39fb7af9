# SPDX-License-Identifier: Apache-2.0
"""relu_backward exactly; the gradient at 0 and behind a NaN."""

import anyop
import numpy as np


def reference(grad_out, out):
    return np.where(out <= 0, 0, grad_out)


def test_at_zero_and_nan():
    out = np.array([0.0, -0.0, 1e-30, np.nan, 2.0, np.inf], np.float32)
    found = anyop.relu_backward(np.full(6, 3, np.float32), out)
    np.testing.assert_array_equal(found, [0, 0, 3, 3, 3, 3])
