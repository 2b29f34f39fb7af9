# SPDX-License-Identifier: Apache-2.0
"""linear_act_backward in float64; every choice of gradients; a missing pre."""

import itertools
import math

import anyop
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def slope(v, activation):
    near = np.clip(v, -40, 40)  # beyond, all slopes are 0 or 1
    sigmoid = 1 / (1 + np.exp(-near))
    if activation == "gelu":
        share, more = (1 + _erf(near / math.sqrt(2))) / 2, np.exp(-near * near / 2)
        return share + near * more / math.sqrt(2 * math.pi)
    if activation == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (near + 0.044715 * near**3)
        share = (1 + np.tanh(inner)) / 2
        more = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * near**2) * share * (1 - share)
        return share + near * more
    return {
        "none": np.ones_like(v),
        "relu": (v > 0).astype(float),
        "sigmoid": sigmoid * (1 - sigmoid),
        "silu": sigmoid * (1 + near * (1 - sigmoid)),
    }[activation]


def reference(grad_out, x, weight, pre, activation):
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        g = grad_out if activation == "none" or pre is None else grad_out * slope(pre, activation)
        return g @ weight, np.tensordot(g, x, (rows, rows)), g.sum(rows), g


def test_every_choice_of_gradients():
    random = np.random.default_rng(0)
    shapes = [(70, 9), (70, 5), (9, 5), (70, 9)]
    grad, x, weight, pre = (random.standard_normal(s).astype("f4") for s in shapes)
    names = ["grad_x", "grad_weight", "grad_bias", "grad_residual"]
    whole = anyop.linear_act_backward(grad, x, weight, pre, "gelu")
    expected = reference(*(a.astype(float) for a in (grad, x, weight, pre)), "gelu")
    for found, exact in zip(whole, expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=2e-5)
    for wanted in itertools.product([False, True], repeat=4):
        unwanted = {name: False for name, keep in zip(names, wanted, strict=True) if not keep}
        found = anyop.linear_act_backward(grad, x, weight, pre, "gelu", **unwanted)
        for result, expected, keep in zip(found, whole, wanted, strict=True):
            assert (result is not None) == keep
            if keep:
                np.testing.assert_array_equal(result, expected)


def test_pre_is_needed():
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match=r"^linear_act_backward: pre is missing"):
        anyop.linear_act_backward(ones, ones, ones, None, "relu")
    found = anyop.linear_act_backward(ones, ones, ones)
    np.testing.assert_array_equal(found[3], ones)
