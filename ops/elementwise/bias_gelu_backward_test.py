# SPDX-License-Identifier: Apache-2.0
"""bias_gelu_backward in float64, both forms; sums over many rows."""

import math

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def reference(grad_out, x, bias, approximate):
    near = np.clip(x + bias, -40, 40)  # beyond, the slope is 0 or 1
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (near + 0.044715 * near**3)
        share = (1 + np.tanh(inner)) / 2
        more = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * near**2) * share * (1 - share)
    else:
        share = (1 + _erf(near / math.sqrt(2))) / 2
        more = np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    with np.errstate(all="ignore"):
        grad_x = grad_out * (share + near * more)
        return grad_x, grad_x.sum(tuple(range(x.ndim - 1)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("rows", "D"), [(3, 8193), (1000, 70)])
def test_many_rows_and_long_ones(dtype, rows, D, approximate):
    random = np.random.default_rng(D)
    grad, x, bias = (
        random.standard_normal(shape).astype(dtype) for shape in ((rows, D), (rows, D), D)
    )
    expected = reference(*(a.astype(float) for a in (grad, x, bias)), approximate)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-5, "float64": 1e-13}[dtype]
    found = anyop.bias_gelu_backward(grad, x, bias, approximate)
    for a, b in zip(found, expected, strict=True):
        assert (np.abs(a.astype(float) - b) <= limit * (1 + np.abs(b))).all()
    assert anyop.bias_gelu_backward(grad, x, bias, approximate, grad_x=False)[0] is None


def test_another_approximation_is_refused():
    ones = np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"^bias_gelu_backward: approximate"):
        anyop.bias_gelu_backward(ones, ones, ones[0], "sigmoid")
