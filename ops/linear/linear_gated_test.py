# SPDX-License-Identifier: Apache-2.0
"""linear_gated in float64; several blocks of rows; bad activations."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest
from linear_act_test import activate


def both(x, weight, activation):
    with np.errstate(all="ignore"):
        pre = x @ weight.T
        gate, value = np.split(pre, 2, -1)
        return activate(gate, activation) * value, pre


def reference(x, weight, activation):
    return both(x, weight, activation)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("M", "K", "D"), [(1, 70, 40), (3, 300, 65), (700, 4, 3000)])
def test_blocks(dtype, M, K, D):
    """Integers make the products exact; more than 2^22 of them are several blocks."""
    random = np.random.default_rng(M)
    x, weight = (random.integers(-1, 2, s).astype(dtype) for s in ((M, K), (2 * D, K)))
    out, pre = anyop.native_linear_gated(x, weight, "relu")
    expected = both(x.astype(float), weight.astype(float), "relu")
    np.testing.assert_array_equal(pre.astype(float), expected[1])
    np.testing.assert_array_equal(out, expected[0].astype(dtype))


def test_bad_calls():
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match=r"^linear_gated: activation is unknown"):
        anyop.linear_gated(ones, ones, "swish")
    with pytest.raises(ValueError, match=r"^linear_gated: weight has shape \(3, 2\)"):
        anyop.linear_gated(ones, np.ones((3, 2), np.float32))
