# SPDX-License-Identifier: Apache-2.0
"""verify_tree_greedy: a tree walked in Python; circles end."""

import anyop
import numpy as np


def reference(candidates, next_token, next_sibling, target):
    B, D = target.shape
    tokens, index = np.full((2, B, D), -1)
    accepted = np.zeros(B)
    for b in range(B if D else 0):
        way, looks = [0], 0
        while len(way) < D:
            child = next_token[b, way[-1]]
            while 0 <= child < D and looks < D and candidates[b, child] != target[b, way[-1]]:
                child, looks = next_sibling[b, child], looks + 1
            if not 0 <= child < D or looks == D:
                break
            way.append(child)
        index[b, : len(way)] = way
        tokens[b, : len(way)] = target[b, way]
        accepted[b] = len(way) - 1
    return tokens, index, accepted


def test_a_tree():
    """0 has the children 1, 2 and 3, 2 has 4, and 4 has 5."""
    candidates = np.array([[9, 5, 6, 7, 8, 1]], np.int32)
    next_token = np.array([[1, -1, 4, -1, 5, -1]], np.int32)
    next_sibling = np.array([[-1, 2, 3, -1, -1, -1]], np.int32)
    target = np.array([[6, 0, 8, 0, 2, 0]], np.int32)
    tokens, index, accepted = anyop.verify_tree_greedy(candidates, next_token, next_sibling, target)
    np.testing.assert_array_equal(tokens, [[6, 8, 2, -1, -1, -1]])
    np.testing.assert_array_equal(index, [[0, 2, 4, -1, -1, -1]])
    assert accepted[0] == 2
