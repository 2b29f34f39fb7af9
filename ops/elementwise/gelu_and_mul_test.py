# SPDX-License-Identifier: Apache-2.0
"""gelu_and_mul in float64, both forms; the halves are not mixed up."""

import math

import anyop
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def reference(x, approximate):
    gate, value = np.split(x, 2, axis=-1)
    with np.errstate(all="ignore"):
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            return gate * (1 + np.tanh(inner)) / 2 * value
        return gate * (1 + _erf(gate / math.sqrt(2))) / 2 * value


def test_the_first_half_is_the_gate():
    x = np.zeros((2, 6), np.float32)
    x[:, :3], x[:, 3:] = 100, [1, 2, 3]
    for approximate in ("none", "tanh"):
        found = anyop.gelu_and_mul(x, approximate)
        np.testing.assert_array_equal(found, [[100, 200, 300]] * 2)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("D", [1023, 1025, 8193])
def test_is_gelu_times_the_rest(D, approximate):
    x = np.random.default_rng(D).standard_normal((3, 2 * D)).astype(np.float32)
    expected = anyop.gelu(x[:, :D], approximate=approximate) * x[:, D:]
    np.testing.assert_allclose(anyop.gelu_and_mul(x, approximate), expected, 1e-6, 1e-7)


def test_another_approximation_is_refused():
    with pytest.raises(ValueError, match=r"^gelu_and_mul: approximate"):
        anyop.gelu_and_mul(np.ones((2, 4), np.float32), "sigmoid")
