# SPDX-License-Identifier: Apache-2.0
"""grouped_linear_fp8_block in float64: segments of any kind, scales in either order of strides."""

import anyop
import ml_dtypes
import numpy as np
import pytest
from grouped_linear_test import segments
from linear_fp8_block_test import spread


def reference(x, weight, x_scale, weight_scale, offsets, out_dtype=None):
    with np.errstate(all="ignore"):
        rows = x.astype(float) * spread(x_scale, *x.shape, 1)
        factors = weight.astype(float) * spread(weight_scale, *weight.shape[1:], 128)
        out = np.zeros((len(x), weight.shape[1]))
        for e, own in segments(offsets, len(x)):
            out[own] = rows[own] @ factors[e].T
    return out


@pytest.mark.parametrize("offsets", [[0, 0, 70, 300], [-5, 299, 4, 1000], [9, 10, 10, 11]])
def test_exactly(offsets):
    random = np.random.default_rng(0)
    x, weight = (
        random.integers(-2, 3, s).astype(ml_dtypes.float8_e4m3fn)
        for s in ((300, 200), (3, 140, 200))
    )
    x_scale, weight_scale = (
        np.exp2(random.integers(-2, 3, s)).astype("f4") for s in ((300, 2), (3, 2, 2))
    )
    offsets = np.array(offsets, np.int32)
    expected = reference(x, weight, x_scale, weight_scale, offsets)
    for scale in (x_scale, np.asfortranarray(x_scale)):
        found = anyop.grouped_linear_fp8_block(x, weight, scale, weight_scale, offsets, "float32")
        np.testing.assert_array_equal(found, expected)
