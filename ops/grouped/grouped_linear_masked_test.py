# SPDX-License-Identifier: Apache-2.0
"""grouped_linear_masked in float64; counts that are negative or too large."""

import anyop
import numpy as np


def inside(counts, rows):
    """Whether each row of each expert counts."""
    return np.arange(rows) < np.asarray(counts)[:, None]


def reference(x, weight, counts):
    with np.errstate(all="ignore"):
        out = x @ weight.swapaxes(1, 2)
    return np.where(inside(counts, x.shape[1])[..., None], out, 0.0)


def test_counts_of_any_kind():
    random = np.random.default_rng(0)
    x, weight = (random.integers(-2, 3, s).astype("f4") for s in ((5, 70, 40), (5, 24, 40)))
    counts = np.array([-3, 0, 1, 70, 2**31 - 1], np.int32)
    x[1] = x[2, 1:] = np.nan  # rows that do not count are not read
    expected = reference(np.nan_to_num(x.astype(float)), weight, counts)
    memory = np.full((7, 70, 24), 7, "f4")
    anyop.grouped_linear_masked(x, weight, counts, out=memory[1:-1])
    np.testing.assert_array_equal(memory[1:-1], expected)
    assert (memory[[0, -1]] == 7).all()
