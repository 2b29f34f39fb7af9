# SPDX-License-Identifier: Apache-2.0
"""rms_norm in float64; long rows, values that are not finite, in place."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, weight, eps, weight_offset=0.0, dtype=None):
    with np.errstate(all="ignore"):
        factor = (1 if weight is None else weight) + weight_offset
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * factor


def test_long_rows_keep_their_precision():
    """The error of the sum must not grow with the row."""
    random = np.random.default_rng(0)
    x = (random.standard_normal((2, 1 << 20)) + 3).astype(np.float32)
    weight = np.ones(x.shape[1], np.float32)
    expected = reference(x.astype(float), weight.astype(float), 1e-6)
    assert np.abs(anyop.rms_norm(x, weight) / expected - 1).max() < 1e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(bad):
    x = np.ones((3, 40), np.float32)
    x[1, 37] = bad
    with np.errstate(all="ignore"):
        expected = reference(x.astype(float), np.ones(40), 1e-6)
    np.testing.assert_array_equal(
        np.isnan(anyop.rms_norm(x, np.ones(40, np.float32))), np.isnan(expected)
    )


def test_in_place():
    x = np.random.default_rng(1).standard_normal((5, 33)).astype(np.float32)
    weight = np.linspace(-1, 1, 33, dtype=np.float32)
    expected = anyop.rms_norm(x, weight)
    assert anyop.rms_norm(x, weight, out=x) is x
    np.testing.assert_array_equal(x, expected)


# Around kBlock and kShortRow of anyop/cpu/rows.h, where rows are cut or no longer converted at once.
BLOCKS = [1023, 1024, 1025, 2047, 8191, 8192, 8193, 20000]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("D", BLOCKS)
def test_sizes_around_blocks(dtype, D):
    dtype = np.dtype(dtype)
    random = np.random.default_rng(D)
    x, weight = (random.standard_normal(shape).astype(dtype) for shape in [(3, D), (D,)])
    expected = reference(x.astype(float), weight.astype(float), 1e-6)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype.name]
    found = anyop.rms_norm(x, weight)
    assert found.dtype == dtype
    assert (np.abs(found.astype(float) - expected) <= limit * (1 + np.abs(expected))).all()


def test_equals_gemma():
    """Weights that are stored less 1, of another dtype than x; the result in float32."""
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 100)).astype("bfloat16")
    weight = random.standard_normal(100).astype(np.float32)
    found = anyop.rms_norm(x, weight, 1e-6, weight_offset=1.0, dtype="float32")
    expected = reference(x.astype(float), weight.astype(float) + 1, 1e-6)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, 2e-6, 2e-6)


def test_relatives_give_the_same_bits():
    random = np.random.default_rng(0)
    x = random.standard_normal((6, 100)).astype(np.float16)
    residual, weight = x[::-1].copy(), x[0].astype(np.float32)
    expected = anyop.rms_norm(x, weight, 1e-5, weight_offset=0.5)
    for relative in (anyop.native_rms_norm, anyop.rms_norm_from_output):
        np.testing.assert_array_equal(relative(x, weight, 1e-5, weight_offset=0.5)[0], expected)
    out, total = anyop.fused_add_rms_norm(x, residual, weight, 1e-5, weight_offset=0.5)
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_array_equal(out, anyop.rms_norm(total, weight, 1e-5, weight_offset=0.5))
