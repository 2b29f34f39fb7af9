# SPDX-License-Identifier: Apache-2.0
"""verify_tree: a tree walked in Python, and the distribution of what it gives."""

import os

import anyop
import numpy as np
import pytest
from draw_reference import assert_drawn, coin, token_behind


def reference(
    candidates, next_token, next_sibling, target_probs, draft_probs, seed, offset,
    threshold_single, threshold_acc,
):  # fmt: skip
    B, D, V = target_probs.shape
    offset = np.broadcast_to(offset, (B,))
    tokens, index = np.full((2, B, D), -1)
    accepted = np.zeros(B, int)
    for b in range(B if D else 0):
        node, taken, looks = 0, 0, 0
        while True:
            index[b, taken] = node
            without, total, found = [], 0.0, False
            child = next_token[b, node] if taken + 1 < D else -1
            while 0 <= child < D and looks < D:
                token = candidates[b, child]
                p = target_probs[b, node, token] if 0 <= token < V else 0.0
                p = p if 0 <= p <= 2.0**80 else 0.0
                total += p
                limit = coin(seed[b], offset[b], node) * threshold_acc
                if found := p > 0 and (limit < total or p >= threshold_single):
                    break
                without.append(token)
                child, looks = next_sibling[b, child], looks + 1
            if not found:
                break
            tokens[b, taken] = candidates[b, child]
            node, taken = int(child), taken + 1
        accepted[b] = taken
        less = draft_probs is not None and len(without) > 0
        target = target_probs[b, node]
        draft = draft_probs[b, node] if less else np.zeros(V)
        # All children of the list are left out, those behind the last look among them.
        if without:
            child = next_token[b, node]
            for _ in range(D):
                if not 0 <= child < D:
                    break
                without.append(candidates[b, child])
                child = next_sibling[b, child]
        inside = [v for v in without if 0 <= v < V]
        tokens[b, taken] = token_behind(target, draft, inside, seed[b], offset[b])
    return tokens, index, accepted


#  0 has the children 1, 2 and 3; 2 has 4 and 5.
CANDIDATES = np.array([[9, 5, 6, 7, 8, 1]], np.int32)
NEXT_TOKEN = np.array([[1, -1, 4, -1, -1, -1]], np.int32)
NEXT_SIBLING = np.array([[-1, 2, 3, -1, 5, -1]], np.int32)


def test_tokens_have_the_distribution_of_the_target():
    B, V = 1_000_000 if os.environ.get("ANYOP_TEST_FULL") else 20_000, 11
    target = np.random.default_rng(1).dirichlet(np.ones(V), 6).astype(np.float32)
    trees = [np.tile(x, (B, 1)) for x in (CANDIDATES, NEXT_TOKEN, NEXT_SIBLING)]
    given = (np.tile(target, (B, 1, 1)), None, np.full(B, 3), np.arange(B))
    tokens, index, accepted = anyop.verify_tree(*trees, *given)
    assert_drawn(tokens[:, 0], target[0].astype(float))
    for node in (1, 2, 3):
        assert_drawn(tokens[index[:, 1] == node, 1], target[node].astype(float))
    for node in (4, 5):
        assert_drawn(tokens[index[:, 2] == node, 2], target[node].astype(float))
    np.testing.assert_array_equal((tokens >= 0).sum(1), accepted + 1)


@pytest.mark.parametrize("single, acc", [(0.0, 1.0), (1.0, 0.0)])
def test_thresholds_accept_the_first_child(single, acc):
    target = np.full((1, 6, 11), 1 / 11, np.float32)
    tokens, index, accepted = anyop.verify_tree(
        CANDIDATES,
        NEXT_TOKEN,
        NEXT_SIBLING,
        target,
        None,
        np.array([1]),
        np.array([0]),
        single,
        acc,
    )
    assert accepted[0] == 1 and tokens[0, 0] == 5 and tokens[0, 1] >= 0
    np.testing.assert_array_equal(index[0], [0, 1, -1, -1, -1, -1])


def test_bad_rows_and_circles():
    """A list of circles ends, a child outside is none, a bad row gives no token."""
    target = np.full((2, 3, 4), 0.25, np.float32)
    target[1, 0, 2] = np.nan
    candidates = np.array([[0, -1, 4]] * 2, np.int64)
    circle = np.array([[1, 1, 1]] * 2)
    tokens, _, accepted = anyop.verify_tree(
        candidates, circle, np.array([[0, 2, 1]] * 2), target, None, np.arange(2), np.zeros(2, int)
    )
    assert (accepted == 0).all() and 0 <= tokens[0, 0] < 4 and tokens[1, 0] == -1
