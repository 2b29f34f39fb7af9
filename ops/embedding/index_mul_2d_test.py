# SPDX-License-Identifier: Apache-2.0
"""index_mul_2d by indexing, and indices outside the table."""

import anyop
import numpy as np
import pytest


def reference(in1, in2, indices):
    return in1[indices] * in2


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("index", [10, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("order", ["", "_backward", "_double_backward"])
def test_index_outside(index, dtype, order):
    """An error of all three operators, before anything is written."""
    indices = np.zeros(3000, dtype)
    indices[[7, 8, 2999]] = index
    table, rows = np.ones((10, 4), np.float32), np.ones((3000, 4), np.float32)
    given = (table, rows, indices) if not order else (rows, table, rows, indices, table, rows)
    given = given[:4] if order == "_backward" else given
    out = np.full_like(rows, 7)
    name = {"": "out", "_backward": "grad_in2", "_double_backward": "grad_grad_out"}[order]
    message = rf"^index_mul_2d{order}: indices\[7\] is {index}, expected 0 <= index < 10$"
    with pytest.raises(ValueError, match=message):
        getattr(anyop, "index_mul_2d" + order)(*given, **{name: out})
    assert (out == 7).all()


@pytest.mark.parametrize("D", [1, 8, 33, 9000])
def test_rows_longer_than_a_block(D):
    random = np.random.default_rng(D)
    in1, in2 = random.standard_normal((5, D)), random.standard_normal((7, D))
    indices = random.integers(0, 5, 7)
    for dtype, limit in (("float32", 1e-6), ("float16", 1e-3), ("float64", 0)):
        a, b = in1.astype(dtype), in2.astype(dtype)
        expected = reference(a.astype(float), b.astype(float), indices)
        found = anyop.index_mul_2d(a, b, indices)
        np.testing.assert_allclose(found, expected, rtol=limit, atol=limit)
        np.testing.assert_array_equal(anyop.index_mul_2d(a, b, indices, out=b), found)
