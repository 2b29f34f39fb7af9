# SPDX-License-Identifier: Apache-2.0
"""embedding by indexing, and indices outside the table."""

import anyop
import numpy as np
import pytest


def reference(indices, weight):
    return weight[indices]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("index", [10, -1, 2**31 - 1, -(2**31)])
def test_index_outside(index, dtype):
    indices = np.zeros((20, 3000), dtype)
    indices[7, 5], indices[7, 6], indices[19, 0] = index, index, index
    weight, out = np.ones((10, 4), np.float32), np.full((20, 3000, 4), 7, np.float32)
    message = rf"^embedding: indices\[7, 5\] is {index}, expected 0 <= index < 10$"
    with pytest.raises(ValueError, match=message):
        anyop.embedding(indices, weight, out=out)
    assert (out == 7).all()


def test_index_of_a_scalar_and_empty_table():
    with pytest.raises(ValueError, match=r"^embedding: indices is 4, expected 0 <= index < 4$"):
        anyop.embedding(np.array(4), np.ones((4, 2), np.float32))
    with pytest.raises(ValueError, match=r"indices\[0\] is 0, expected 0 <= index < 0$"):
        anyop.embedding(np.array([0]), np.ones((0, 2), np.float32))


@pytest.mark.parametrize("D", [1, 2, 4, 8, 16, 32, 33])
def test_widths(D):
    """Rows of some widths are copied in other ways; rows of a wider table too."""
    table = np.arange(50 * 40, dtype=np.float32).reshape(50, 40)
    indices = np.random.default_rng(0).integers(0, 50, (7, 11))
    for weight in (np.ascontiguousarray(table[:, :D]), table[:, :D], table[::-2, 1 : D + 1]):
        rows = indices % len(weight)
        np.testing.assert_array_equal(anyop.embedding(rows, weight), weight[rows])
