# SPDX-License-Identifier: Apache-2.0
"""linear_w8a8 in float64: every kind of scale, exact sums of int8, every byte of the 8-bit floats, blocks."""

from pathlib import Path

import anyop
import ml_dtypes
import numpy as np
import pytest


def reference(x, weight, x_scale, weight_scale, bias, out_dtype=None):
    with np.errstate(all="ignore"):
        sums = x.astype(float) @ weight.astype(float).T
        rows = np.broadcast_to(x_scale, x.shape[:1])[:, None]
        return sums * rows * weight_scale + (0 if bias is None else bias)


@pytest.mark.parametrize(
    ("M", "K", "N"),
    [(3, 5000, 40), (300, 70, 300), (5, 17000, 600), (20, 5003, 130), (800, 33, 257)],
)
def test_sums_of_int8_are_exact(M, K, N):
    """As long as they are below 2^24, whatever the blocks."""
    random = np.random.default_rng(M)
    x, weight = (random.integers(-128, 128, s).astype(np.int8) for s in ((M, K), (N, K)))
    exact = x.astype(np.int64) @ weight.astype(np.int64).T
    one = np.ones(1, np.float32)
    found = anyop.linear_w8a8(x, weight, one, one, out_dtype="float32")
    if "avx512_vnni" in Path("/proc/cpuinfo").read_text():  # sums are int32
        np.testing.assert_array_equal(found, exact.astype(np.float32))
    small = np.abs(exact) < 2**23
    np.testing.assert_array_equal(found[small], exact[small])
    np.testing.assert_allclose(found, exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_every_byte(dtype):
    numbers = np.arange(256, dtype=np.uint8)
    x = numbers.view(np.int8 if dtype == "int8" else getattr(ml_dtypes, dtype))[:, None]
    one = np.ones((1, 1), np.float32).astype(x.dtype)
    found = anyop.linear_w8a8(x, one, np.float32([0.5]), np.float32([4]), out_dtype="float32")
    np.testing.assert_array_equal(found[:, 0], x[:, 0].astype(np.float32) * 2)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_no_terms_are_the_bias(dtype):
    """Also behind a product whose sums are still in the thread's memory."""
    kind = np.int8 if dtype == "int8" else ml_dtypes.float8_e4m3fn
    one, bias = np.ones(1, np.float32), np.arange(9, dtype=np.float32)
    for M in (1, 16, 17, 300):
        full = np.ones((300, 64)).astype(kind)
        anyop.linear_w8a8(full, full, one, one)
        x, weight = np.ones((M, 0)).astype(kind), np.ones((9, 0)).astype(kind)
        found = anyop.linear_w8a8(x, weight, one, one, bias, "float32")
        np.testing.assert_array_equal(found, np.broadcast_to(bias, (M, 9)))


def test_kinds_of_scales_and_what_is_rounded():
    random = np.random.default_rng(0)
    x, weight = (random.integers(-128, 128, s).astype(np.int8) for s in ((5, 64), (9, 64)))
    bias = random.standard_normal(9).astype(np.float32) * 30
    of_rows, of_columns = (random.uniform(0.01, 0.1, n).astype(np.float32) for n in (5, 9))
    for x_scale in (of_rows, of_rows[:1], of_rows[0].reshape(())):
        for weight_scale in (of_columns, of_columns[:1], of_columns[0].reshape(())):
            expected = reference(x, weight, x_scale, weight_scale, bias)
            wide = anyop.linear_w8a8(x, weight, x_scale, weight_scale, bias, "float32")
            np.testing.assert_allclose(wide, expected, rtol=1e-6, atol=1e-5)
            half = anyop.linear_w8a8(x, weight, x_scale, weight_scale, bias)
            np.testing.assert_array_equal(half, wide.astype(ml_dtypes.bfloat16))


def test_bad_scales():
    x, weight = np.ones((2, 4), np.int8), np.ones((3, 4), np.int8)
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match=r"^linear_w8a8: x_scale has shape \(3\)"):
        anyop.linear_w8a8(x, weight, np.ones(3, np.float32), one)
    with pytest.raises(TypeError, match=r"^linear_w8a8: .*out_dtype"):
        anyop.linear_w8a8(x, weight, one, one, out_dtype="int8")
