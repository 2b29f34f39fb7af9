# SPDX-License-Identifier: Apache-2.0
"""Very many rows of no elements: nothing to compute ends at once, and what is not empty is written."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

EMPTY = {
    "rms_norm": lambda e, z: (e, z),
    "l2_normalize": lambda e, z: (e,),
    "layer_norm": lambda e, z: (e, z, z),
    "silu_and_mul": lambda e, z: (e,),
    "softmax": lambda e, z: (e,),
    "log_softmax": lambda e, z: (e,),
    "linear": lambda e, z: (e, np.zeros((0, 0), np.float32)),
    "add": lambda e, z: (e, z),
    "embedding": lambda e, z: (np.zeros(e.shape, np.int64), np.zeros((3, 0), np.float32)),
    "rms_norm_backward": lambda e, z: (e, e, z),
    "l2_normalize_backward": lambda e, z: (e, e),
    "layer_norm_backward": lambda e, z: (e, e, z),
    "silu_and_mul_backward": lambda e, z: (e, e),
    "softmax_backward": lambda e, z: (e, e),
    "mul_backward": lambda e, z: (e, e, e),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_many_rows_without_elements_are_no_work(name):
    """2^40 rows of length 0: hours, where a kernel goes through them."""
    for sizes in ((2**40, 0), (2**20, 2**20, 0)):
        e, z = np.zeros(sizes, np.float32), np.zeros(0, np.float32)
        found = getattr(anyop, name)(*EMPTY[name](e, z))
        for result in found if isinstance(found, tuple) else (found,):
            assert result is None or result.size == 0


def test_indices_are_checked_where_rows_are_empty():
    with pytest.raises(ValueError, match=r"indices\[1\] is 7, expected 0 <= index < 3"):
        anyop.embedding(np.array([1, 7]), np.zeros((3, 0), np.float32))


def test_results_of_empty_sums_are_written():
    """An empty input whose gradient is not empty."""
    e = np.zeros((2**40, 0), np.float32)
    dx, dy = anyop.mul_backward(e, np.ones((1, 1), np.float32), e)
    assert dx.shape == e.shape and dy.tolist() == [[0.0]]
    with pytest.raises(MemoryError):
        anyop.masked_mean(np.zeros((2**40, 0, 1), np.float32), np.zeros((2**40, 0), bool))
