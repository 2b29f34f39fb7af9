# SPDX-License-Identifier: Apache-2.0
"""mul in float64, integers exactly; integers wrap around."""

import anyop
import numpy as np


def reference(x, y):
    if x.dtype.kind == "f" or y.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return x * y
    dtype = np.result_type(x.dtype, y.dtype)
    with np.errstate(over="ignore"):
        return x.astype(dtype) * y.astype(dtype)


def test_integers_wrap_around():
    x = np.array([2**62, -(2**63), 3], np.int64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(anyop.mul(x, x), x * x)
    small = np.array([200, 255], np.uint8)
    np.testing.assert_array_equal(anyop.mul(small, small), np.array([64, 1], np.uint8))
