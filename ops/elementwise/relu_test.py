# SPDX-License-Identifier: Apache-2.0
"""relu, exactly; NaN stays, as in torch."""

import anyop
import numpy as np


def reference(x):
    return np.where(x < 0, np.zeros_like(x), x)


def test_not_a_number_stays():
    x = np.array([np.nan, -np.inf, np.inf, -0.0, -1, 2], np.float32)
    np.testing.assert_array_equal(anyop.relu(x), [np.nan, 0, np.inf, 0, 0, 2])
