# SPDX-License-Identifier: Apache-2.0
"""check_permutations by permuting and sorting; a search that is known to succeed."""

import itertools

import anyop
import numpy as np
import pytest


def reference(matrix, stripes, permutations):
    columns = (stripes[:, None] * 4 + np.arange(4)).ravel()
    permuted = np.abs(matrix[:, columns][:, permutations])  # (R, P, 4 W)
    by_stripe = np.sort(permuted.reshape(*permuted.shape[:2], len(stripes), 4), -1)
    sums = by_stripe[..., 2:].sum((-1, -2)).sum(0)
    best = 0
    if not len(sums):
        return np.zeros(()), np.asarray(0, stripes.dtype), sums
    for p, one in enumerate(sums):
        best = p if one > sums[best] else best
    with np.errstate(invalid="ignore"):  # infinities
        return sums[best] - sums[0], np.asarray(best, stripes.dtype), sums


def test_nothing_is_lost_where_that_is_possible():
    """Columns 0 to 3 are dense, the others zero: two of them in each stripe keep everything."""
    matrix = np.zeros((9, 12), np.float32)
    matrix[:, 4:8] = np.arange(1, 37).reshape(9, 4)
    choices = [
        [*left, *(c for c in range(8) if c not in left)]
        for left in itertools.combinations(range(8), 4)
    ]
    improvement, best, sums = anyop.check_permutations(
        matrix, np.array([1, 2]), np.array(choices, np.int64)
    )
    assert sum(c < 4 for c in choices[int(best)][:4]) == 2
    assert sums[int(best)] == matrix.sum()
    assert improvement == matrix.sum() - anyop.sum_after_2_to_4(matrix)


def test_an_index_out_of_range():
    matrix, order = np.ones((2, 8), np.float32), np.arange(4)[None]
    with pytest.raises(IndexError, match=r"^check_permutations: stripes\[0\] is 2, expected 0 <= "):
        anyop.check_permutations(matrix, np.array([2]), order)
    improvement, best, _ = anyop.check_permutations(matrix, np.array([1]), order[:0])
    assert improvement == 0 and best == 0
