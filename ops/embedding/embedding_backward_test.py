# SPDX-License-Identifier: Apache-2.0
"""embedding_backward in float64; one index very often, indices outside the table."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(grad_out, indices, V):
    grad_weight = np.zeros((V, grad_out.shape[-1]))
    with np.errstate(all="ignore"):
        np.add.at(grad_weight, indices, grad_out)
    return grad_weight


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("D", [1, 63, 1025])
def test_one_index_very_often(dtype, D):
    """Ten thousand additions keep their precision; rows longer than a block."""
    random, dtype = np.random.default_rng(D), np.dtype(dtype)
    indices = np.where(random.random((20, 500)) < 0.9, 3, random.integers(0, 40, (20, 500)))
    grad = (random.standard_normal((20, 500, D)) + 1).astype(dtype)
    expected = reference(grad.astype(float), indices, 40)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-13}[dtype.name]
    found = anyop.embedding_backward(grad, indices, 40)
    assert found.dtype == dtype and not found[reference(grad != 0, indices, 40) == 0].any()
    # The limit is that of a sum whose terms are all positive: errors do not grow with their number.
    sizes = reference(np.abs(grad.astype(float)), indices, 40)
    assert (np.abs(found.astype(float) - expected) <= limit * (1 + sizes)).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("index", [10, -1, 2**31 - 1, -(2**31)])
def test_index_outside(index, dtype):
    indices = np.zeros((20, 30), dtype)
    indices[7, 5] = index
    message = rf"^embedding_backward: indices\[7, 5\] is {index}, expected 0 <= index < 10$"
    with pytest.raises(ValueError, match=message):
        anyop.embedding_backward(np.ones((20, 30, 4), np.float32), indices, 10)


def test_sizes_of_the_table():
    grad, indices = np.ones((0, 4), np.float32), np.zeros(0, np.int64)
    assert anyop.embedding_backward(grad, indices, 0).shape == (0, 4)
    np.testing.assert_array_equal(anyop.embedding_backward(grad, indices, 3), np.zeros((3, 4)))
    with pytest.raises(ValueError, match="0 <= V"):
        anyop.embedding_backward(grad, indices, -1)
