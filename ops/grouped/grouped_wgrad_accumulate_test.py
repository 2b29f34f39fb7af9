# SPDX-License-Identifier: Apache-2.0
"""grouped_wgrad_accumulate in float64: experts without rows, rows without experts, bad offsets, several blocks."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest
from grouped_linear_test import segments


def reference(x, grad_out, offsets, grad_weight):
    with np.errstate(all="ignore"):
        for e, rows in segments(offsets, len(x)):
            grad_weight[e] += grad_out[rows].T @ x[rows]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "offsets", [[0, 0, 70, 70, 300], [5, 300, 2, -1, 900], [9, 10, 10, 11, 12]]
)
def test_exactly(dtype, offsets):
    """Small integers; added twice. What experts without rows have is left as it is, -0 too."""
    random = np.random.default_rng(1)
    x, grad = (random.integers(-1, 2, s).astype(dtype) for s in ((300, 40), (300, 24)))
    weight = random.integers(-9, 10, (4, 24, 40)).astype(np.float32)
    offsets = np.array(offsets, np.int32)
    empty = [e for e, rows in segments(offsets, 300) if len(x[rows]) == 0]
    weight[empty] = -0.0
    exact = weight.astype(float)
    for _ in range(2):
        reference(x.astype(float), grad.astype(float), offsets, exact)
        assert anyop.grouped_wgrad_accumulate(x, grad, offsets, weight) is None
    np.testing.assert_array_equal(weight, exact)
    assert np.signbit(weight[empty]).all()


def test_several_blocks_of_sums():
    """3,000 by 1,500 sums are more than 2^22."""
    random = np.random.default_rng(2)
    x, grad = (random.integers(-1, 2, s).astype(np.float32) for s in ((6, 1500), (6, 3000)))
    weight, offsets = np.ones((2, 3000, 1500), np.float32), np.array([1, 4, 6], np.int32)
    exact = weight.copy()
    reference(x, grad, offsets, exact)
    anyop.grouped_wgrad_accumulate(x, grad, offsets, weight)
    np.testing.assert_array_equal(weight, exact)
