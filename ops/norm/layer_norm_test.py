# SPDX-License-Identifier: Apache-2.0
"""layer_norm in float64; rows whose mean is large beside their spread."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, weight, bias, eps, weight_offset=0.0, dtype=None):
    with np.errstate(all="ignore"):
        centred = x - x.mean(-1, keepdims=True)
        out = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    out = out * ((1 if weight is None else weight) + weight_offset)
    return out if bias is None else out + bias


def test_a_large_mean_does_not_cost_the_variance():
    """mean(x^2) - mean(x)^2 would have no correct digit here."""
    random = np.random.default_rng(0)
    x = (random.standard_normal((4, 5000)) + 4096).astype(np.float32)
    expected = reference(x.astype(float), None, None, 1e-5)
    assert np.abs(anyop.layer_norm(x) - expected).max() < 2e-3  # x itself is rounded to 2^-12


def test_relatives_give_the_same_bits():
    x = np.random.default_rng(1).standard_normal((6, 100)).astype(np.float16)
    residual, weight, bias = x[::-1].copy(), x[0].astype(np.float32), x[1].astype(np.float32)
    expected = anyop.layer_norm(x, weight, bias, weight_offset=0.5)
    for relative in (anyop.native_layer_norm, anyop.layer_norm_from_output):
        np.testing.assert_array_equal(relative(x, weight, bias, weight_offset=0.5)[0], expected)
    out, total = anyop.fused_add_layer_norm(x, residual, weight, bias, weight_offset=0.5)
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_array_equal(out, anyop.layer_norm(total, weight, bias, weight_offset=0.5))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("D", [1023, 1024, 1025, 3000, 8192, 8193])
@pytest.mark.parametrize("with_weight", [False, True])
def test_sizes_around_blocks(dtype, D, with_weight):
    """Without weight and bias their places hold ones and zeros, of which there is one block only."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(D)
    x = (random.standard_normal((2, D)) + 5).astype(dtype)
    given = [random.standard_normal(D).astype(dtype) if with_weight else None for _ in range(2)]
    exact = [None if v is None else v.astype(float) for v in given]
    expected = reference(x.astype(float), *exact, 1e-5)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-13}[dtype.name]
    found = anyop.layer_norm(x, *given).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()
