# SPDX-License-Identifier: Apache-2.0
"""linear_act in float64; blocks of rows; what is rounded once; bad activations."""

import math

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def activate(v, activation):
    with np.errstate(all="ignore"):
        sigmoid = np.exp(-np.logaddexp(0, -v))
        if activation == "gelu":
            return v * (1 + _erf(v / math.sqrt(2))) / 2
        if activation == "gelu_tanh":
            return v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2
        found = {"none": v, "relu": np.maximum(v, 0), "sigmoid": sigmoid, "silu": v * sigmoid}
        return found[activation]


def before(x, weight, bias, residual):
    with np.errstate(all="ignore"):
        return x @ weight.T + (0 if bias is None else bias) + (0 if residual is None else residual)


def reference(x, weight, bias, residual, activation):
    return activate(before(x, weight, bias, residual), activation)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("M", "K", "N"), [(1, 70, 40), (4, 300, 65), (300, 40, 300), (5, 8, 70000)]
)
def test_shapes_that_are_cut(dtype, M, K, N):
    """Integers make the sums exact, so that one rounding is left; 70,000 columns of 300 rows are several blocks."""
    random = np.random.default_rng(M)
    M = 600 if N == 300 else M
    x, weight = (random.integers(-1, 2, s).astype(dtype) for s in ((M, K), (N, K)))
    bias, residual = (random.integers(-9, 10, s).astype(dtype) for s in (N, (M, N)))
    exact = before(*(a.astype(float) for a in (x, weight, bias, residual)))
    found = anyop.linear_act(x, weight, bias, residual, "relu").astype(float)
    np.testing.assert_array_equal(found, np.maximum(exact, 0))


def test_blocks_of_rows():
    """More than 2^22 results: several blocks, of which the last is not full."""
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((700, 4)).astype("f4"), np.eye(4, dtype="f4")
    weight = np.tile(weight, (2500, 1))
    out, pre = anyop.native_linear_act(x, weight, activation="silu")
    np.testing.assert_array_equal(pre, np.tile(x, (1, 2500)))
    expected = activate(pre.astype(float), "silu")
    assert (np.abs(out - expected) <= 1e-6 * (1 + np.abs(expected))).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_is_rounded_once(dtype):
    """A product that is rounded before its residual is added loses all that is left of it here."""
    eps = 2.0 ** (-11 if dtype == "float16" else -8)
    x = np.array([[1, eps / 2]], dtype)
    residual = np.array([[-1]], dtype)
    found = anyop.linear_act(x, np.ones((1, 2), dtype), None, residual)
    assert float(found[0, 0]) == eps / 2


def test_another_activation_is_refused():
    ones = np.ones((2, 2), np.float32)
    for call in (anyop.linear_act, anyop.native_linear_act):
        with pytest.raises(ValueError, match=r"linear_act: activation is unknown, expected 'none'"):
            call(ones, ones, activation="tanh")
