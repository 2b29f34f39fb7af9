# SPDX-License-Identifier: Apache-2.0
"""bias_gelu in float64, both forms; the sum is not rounded."""

import math

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def reference(x, bias, approximate):
    with np.errstate(all="ignore"):
        v = x + bias
        if approximate == "tanh":
            return v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2
        return v * (1 + _erf(v / math.sqrt(2))) / 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("D", [1025, 8193])
def test_sizes_around_blocks(dtype, D, approximate):
    random = np.random.default_rng(D)
    x, bias = (random.standard_normal(shape).astype(dtype) for shape in ((3, D), D))
    expected = reference(x.astype(float), bias.astype(float), approximate)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 2e-15}[dtype]
    found = anyop.bias_gelu(x, bias, approximate).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()


def test_the_sum_is_not_rounded():
    """-2.0009 is no float16; gelu of the nearest, -2, is 0.17 % off."""
    x, bias = np.full((1, 1), -2, np.float16), np.full(1, -0.0009, np.float16)
    expected = reference(-2.0, float(bias[0]), "none")
    assert abs(float(anyop.bias_gelu(x, bias)[0, 0]) / expected - 1) < 5e-4
    assert abs(reference(-2.0, 0.0, "none") / expected - 1) > 1.5e-3


def test_another_approximation_is_refused():
    with pytest.raises(ValueError, match=r"^bias_gelu: approximate"):
        anyop.bias_gelu(np.ones((2, 4), np.float32), np.ones(4, np.float32), "sigmoid")
