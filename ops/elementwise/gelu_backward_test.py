# SPDX-License-Identifier: Apache-2.0
"""gelu_backward in float64, both forms; the tails."""

import math

import anyop
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def reference(grad_out, x, approximate):
    near = np.clip(x, -40, 40)  # beyond, the derivative is 0 or 1
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (near + 0.044715 * near**3)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * near**2)
        tanh = np.tanh(inner)
        return grad_out * ((1 + tanh) + near * (1 - tanh) * (1 + tanh) * slope) / 2
    density = np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    return grad_out * ((1 + _erf(near / math.sqrt(2))) / 2 + near * density)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tails_and_dense_points(approximate, dtype):
    x = np.concatenate([np.linspace(-12, 12, 40001), [-1e30, 1e30, 0.0, np.inf, -np.inf]])
    x = x.astype(dtype)
    found = anyop.gelu_backward(np.ones_like(x), x, approximate=approximate)
    error = np.abs(found - reference(1.0, x.astype(float), approximate)).max()
    # In float64 it is the reference that cancels.
    assert error < {"float32": 1e-6, "float64": 1e-14}[dtype]
    bad = np.array([np.nan], dtype)
    assert np.isnan(anyop.gelu_backward(np.ones_like(bad), bad, approximate=approximate))


def test_another_approximation_is_refused():
    with pytest.raises(ValueError, match="approximate"):
        anyop.gelu_backward(np.ones(3, "f4"), np.ones(3, "f4"), approximate="sigmoid")
