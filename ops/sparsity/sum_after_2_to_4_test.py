# SPDX-License-Identifier: Apache-2.0
"""sum_after_2_to_4 by sorting; a part of a matrix, whole numbers."""

import anyop
import numpy as np
import pytest


def reference(matrix):
    return kept(matrix).sum((-1, -2))


def kept(matrix):
    """What each row keeps of each stripe."""
    stripes = np.abs(matrix).reshape(*matrix.shape[:-1], matrix.shape[-1] // 4, 4)
    return np.sort(stripes, -1)[..., 2:].sum(-1)  # NaN comes last


def test_whole_numbers_are_exact():
    """Each sum is below 2^24, in which float32 has all of them."""
    matrix = np.random.default_rng(0).integers(-99, 100, (3, 777, 64)).astype(np.float32)
    exact = reference(matrix.astype(float))
    assert exact.max() < 2**24
    np.testing.assert_array_equal(anyop.sum_after_2_to_4(matrix), exact)


def test_columns_of_no_stripe_are_refused():
    with pytest.raises(ValueError, match="matrix has shape"):
        anyop.sum_after_2_to_4(np.ones((2, 6), np.float32))
