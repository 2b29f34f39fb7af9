# SPDX-License-Identifier: Apache-2.0
"""layer_norm in float64; rows whose mean is large beside their spread."""

import numpy as np

import anyop


def reference(x, weight, bias, eps):
    with np.errstate(all="ignore"):
        centred = x - x.mean(-1, keepdims=True)
        out = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def test_a_large_mean_does_not_cost_the_variance():
    """mean(x^2) - mean(x)^2 would have no correct digit here."""
    random = np.random.default_rng(0)
    x = (random.standard_normal((4, 5000)) + 4096).astype(np.float32)
    expected = reference(x.astype(float), None, None, 1e-5)
    assert np.abs(anyop.layer_norm(x) - expected).max() < 2e-3  # x itself is rounded to 2^-12


def test_equals_native_layer_norm():
    x = np.random.default_rng(1).standard_normal((6, 100)).astype(np.float32)
    weight, bias = x[0].copy(), x[1].copy()
    np.testing.assert_array_equal(anyop.layer_norm(x, weight, bias), anyop.native_layer_norm(x, weight, bias)[0])
