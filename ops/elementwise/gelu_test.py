# SPDX-License-Identifier: Apache-2.0
"""gelu in float64, both forms; the tails."""

import math

import anyop
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def reference(x, approximate):
    if approximate == "tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * (1 + _erf(x / math.sqrt(2))) / 2


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_tails_and_dense_points(approximate):
    x = np.concatenate([np.linspace(-12, 12, 40001), [-1e30, 1e30, 0.0]]).astype(np.float32)
    expected = reference(x.astype(float), approximate)
    assert (
        np.abs(anyop.gelu(x, approximate=approximate) - expected).max() <= 1e24
    )  # of the largest, exactly below
    small = np.abs(x) < 100
    assert np.abs(anyop.gelu(x, approximate=approximate) - expected)[small].max() < 2e-6
    special = anyop.gelu(np.array([np.nan, np.inf, -np.inf], np.float32), approximate=approximate)
    assert np.isnan(special[0]) and special[1] == np.inf


def test_another_approximation_is_refused():
    with pytest.raises(ValueError, match="approximate"):
        anyop.gelu(np.ones(3, np.float32), approximate="sigmoid")
