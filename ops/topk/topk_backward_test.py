# SPDX-License-Identifier: Apache-2.0
"""topk_backward exactly; indices outside the row."""

import anyop
import numpy as np
import pytest


def reference(grad_values, indices, D):
    grad_x = np.zeros((*indices.shape[:-1], D))
    with np.errstate(all="ignore"):
        for row in np.ndindex(indices.shape[:-1]):
            np.add.at(grad_x[row], indices[row], grad_values[row])
    return grad_x


@pytest.mark.parametrize("D", [5, 1024, 5000])
def test_places_of_topk(D):
    random = np.random.default_rng(0)
    x, grad = (random.standard_normal((30, n)).astype(np.float32) for n in (D, 4))
    indices = anyop.topk(x, 4)[1]
    expected = np.zeros_like(x)
    np.put_along_axis(expected, indices, grad, -1)
    np.testing.assert_array_equal(anyop.topk_backward(grad, indices, D), expected)


@pytest.mark.parametrize("index", [-1, 9, 2**62])
def test_index_outside(index):
    indices = np.array([[0, 1], [2, index]])
    message = rf"^topk_backward: indices\[1, 1\] is {index}, expected 0 <= index < 9"
    with pytest.raises(ValueError, match=message):
        anyop.topk_backward(np.ones((2, 2), np.float32), indices, 9)
