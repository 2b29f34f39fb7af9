# SPDX-License-Identifier: Apache-2.0
"""build_swap_map by swapping and sorting; whole numbers, a bad pair."""

import anyop
import numpy as np
import pytest


def reference(matrix, stripe_pairs):
    out = np.zeros((len(stripe_pairs), 16))
    for n, pair in enumerate(stripe_pairs):
        x, y = (matrix[:, s * 4 : s * 4 + 4].copy() for s in pair)
        base = _kept(x) + _kept(y)
        for swap in range(16):
            i, j = divmod(swap, 4)
            a, b = x.copy(), y.copy()
            a[:, i], b[:, j] = y[:, j], x[:, i]
            with np.errstate(invalid="ignore"):  # infinities
                out[n, swap] = (_kept(a) + _kept(b) - base).sum()
    return out


def _kept(stripe):
    return np.sort(np.abs(stripe), -1)[:, 2:].sum(-1)  # NaN comes last


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_whole_numbers_are_exact(dtype):
    """As two sums of the whole matrix, one of them with two columns swapped."""
    matrix = np.random.default_rng(0).integers(-99, 100, (50, 24)).astype(np.float32)
    pairs = np.array([(a, b) for a in range(6) for b in range(a + 1, 6)], dtype)
    found = anyop.build_swap_map(matrix, pairs)
    base = anyop.sum_after_2_to_4(matrix)
    for (a, b), swaps in zip(pairs, found, strict=True):
        for swap, one in enumerate(swaps):
            order = np.arange(24)
            columns = [a * 4 + swap // 4, b * 4 + swap % 4]
            order[columns] = columns[::-1]
            assert one == anyop.sum_after_2_to_4(matrix[:, order].copy()) - base


def test_an_index_out_of_range():
    pairs = np.array([[0, 1], [1, 2]])
    with pytest.raises(
        IndexError, match=r"^build_swap_map: stripe_pairs\[1, 1\] is 2, expected 0 <= index < 2$"
    ):
        anyop.build_swap_map(np.ones((3, 8), np.float32), pairs)
