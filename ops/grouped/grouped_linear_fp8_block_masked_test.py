# SPDX-License-Identifier: Apache-2.0
"""grouped_linear_fp8_block_masked in float64; bad counts, scales in other orders of strides."""

import anyop
import ml_dtypes
import numpy as np
from grouped_linear_masked_test import inside
from linear_fp8_block_test import spread


def reference(x, weight, x_scale, weight_scale, counts, out_dtype=None):
    with np.errstate(all="ignore"):
        rows = x.astype(float) * spread(x_scale, *x.shape[1:], 1)
        factors = weight.astype(float) * spread(weight_scale, *weight.shape[1:], 128)
        out = rows @ factors.swapaxes(1, 2)
    return np.where(inside(counts, x.shape[1])[..., None], out, 0.0)


def test_exactly():
    random = np.random.default_rng(0)
    x, weight = (
        random.integers(-2, 3, s).astype(ml_dtypes.float8_e4m3fn)
        for s in ((3, 20, 200), (3, 140, 200))
    )
    x_scale, weight_scale = (
        np.exp2(random.integers(-2, 3, s)).astype("f4") for s in ((3, 20, 2), (3, 2, 2))
    )
    counts = np.array([-1, 9, 1000], np.int32)
    expected = reference(x, weight, x_scale, weight_scale, counts)
    for scale in (x_scale, np.ascontiguousarray(x_scale.transpose(0, 2, 1)).transpose(0, 2, 1)):
        found = anyop.grouped_linear_fp8_block_masked(
            x, weight, scale, weight_scale, counts, "float32"
        )
        np.testing.assert_array_equal(found, expected)
