# SPDX-License-Identifier: Apache-2.0
"""gelu_and_mul_backward in float64, both forms; rows around blocks."""

import math

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest

_erf = np.vectorize(math.erf, otypes=[float])


def reference(grad_out, x, approximate):
    gate, value = np.split(x, 2, axis=-1)
    near = np.clip(gate, -40, 40)  # beyond, the slope is 0 or 1
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (near + 0.044715 * near**3)
        share = (1 + np.tanh(inner)) / 2
        more = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * near**2) * share * (1 - share)
    else:
        share = (1 + _erf(near / math.sqrt(2))) / 2
        more = np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    with np.errstate(all="ignore"):
        return np.concatenate(
            [grad_out * value * (share + near * more), grad_out * gate * share], -1
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("D", [1023, 1025, 8193])
def test_sizes_around_blocks(dtype, D, approximate):
    random = np.random.default_rng(D)
    grad, x = (random.standard_normal((3, n)).astype(dtype) for n in (D, 2 * D))
    expected = reference(grad.astype(float), x.astype(float), approximate)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 2e-15}[dtype]
    found = anyop.gelu_and_mul_backward(grad, x, approximate).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()


def test_another_approximation_is_refused():
    with pytest.raises(ValueError, match=r"^gelu_and_mul_backward: approximate"):
        anyop.gelu_and_mul_backward(np.ones((2, 2), "f4"), np.ones((2, 4), "f4"), "sigmoid")
