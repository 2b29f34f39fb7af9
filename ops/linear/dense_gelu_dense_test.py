# SPDX-License-Identifier: Apache-2.0
"""dense_gelu_dense in float64; another approximation is refused."""

import anyop
import numpy as np
import pytest
from linear_act_test import activate


def parts(x, weight1, bias1, weight2, bias2, approximate):
    with np.errstate(all="ignore"):
        gelu_in = x @ weight1.T + bias1
        hidden = activate(gelu_in, "gelu_tanh" if approximate == "tanh" else "gelu")
        return hidden @ weight2.T + bias2, gelu_in, hidden


def reference(x, weight1, bias1, weight2, bias2, approximate):
    return parts(x, weight1, bias1, weight2, bias2, approximate)[0]


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_several_blocks(approximate):
    """1,500 by 3,000 hidden features are more than 2^22."""
    random = np.random.default_rng(0)
    shapes = [(1500, 4), (3000, 4), (3000,), (5, 3000), (5,)]
    values = [random.standard_normal(s).astype("f4") for s in shapes]
    found = anyop.native_dense_gelu_dense(*values, approximate)
    expected = parts(*(v.astype(float) for v in values), approximate)
    for a, b in zip(found, expected, strict=True):
        assert (np.abs(a - b) <= 2e-4 * (1 + np.abs(b))).all()
    np.testing.assert_array_equal(anyop.dense_gelu_dense(*values, approximate), found[0])


def test_another_approximation_is_refused():
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match=r"^dense_gelu_dense: approximate is unknown"):
        anyop.dense_gelu_dense(ones, ones, ones[0], ones, ones[0], "sigmoid")
