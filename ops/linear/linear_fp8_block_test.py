# SPDX-License-Identifier: Apache-2.0
"""linear_fp8_block in float64: scales in either order of strides, blocks that are not full."""

import anyop
import ml_dtypes
import numpy as np
import pytest


def spread(scale, rows, columns, rows_a_scale):
    scale = np.repeat(np.repeat(scale, rows_a_scale, -2), 128, -1)
    return scale[..., :rows, :columns]


def reference(x, weight, x_scale, weight_scale, out_dtype=None):
    with np.errstate(all="ignore"):
        a = x.astype(float) * spread(x_scale, *x.shape, 1)
        return a @ (weight.astype(float) * spread(weight_scale, *weight.shape, 128)).T


@pytest.mark.parametrize(("M", "K", "N"), [(3, 384, 130), (300, 200, 300), (2, 16500, 270)])
def test_both_orders_of_scales(M, K, N):
    """Small integers and powers of two: every sum is exact, so each result must be."""
    random = np.random.default_rng(M)
    x, weight = (
        random.integers(-2, 3, s).astype(ml_dtypes.float8_e4m3fn) for s in ((M, K), (N, K))
    )
    blocks = -(-K // 128)
    x_scale, weight_scale = (
        np.exp2(random.integers(-2, 3, s)).astype(np.float32)
        for s in ((M, blocks), (-(-N // 128), blocks))
    )
    expected = reference(x, weight, x_scale, weight_scale)
    for scale in (x_scale, np.asfortranarray(x_scale)):
        found = anyop.linear_fp8_block(x, weight, scale, weight_scale, out_dtype="float32")
        np.testing.assert_array_equal(found, expected)
    half = anyop.linear_fp8_block(x, weight, x_scale, weight_scale)
    np.testing.assert_array_equal(half, found.astype(ml_dtypes.bfloat16))


def test_bad_scales():
    x = np.ones((2, 200), ml_dtypes.float8_e4m3fn)
    scale = np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match=r"^linear_fp8_block: x_scale has shape \(2, 1\)"):
        anyop.linear_fp8_block(x, x, scale[:, :1], scale[:1])
    with pytest.raises(ValueError, match=r"^linear_fp8_block: weight_scale has shape"):
        anyop.linear_fp8_block(x, x, scale, scale)
