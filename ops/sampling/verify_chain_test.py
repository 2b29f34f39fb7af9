# SPDX-License-Identifier: Apache-2.0
"""verify_chain: a chain walked in Python, and the distribution of what it gives."""

import os

import anyop
import numpy as np
from draw_reference import assert_drawn, coin, token_behind


def reference(draft_probs, draft_tokens, target_probs, seed, offset):
    B, N, V = draft_probs.shape
    offset = np.broadcast_to(offset, (B,))
    tokens = np.full((B, N + 1), -1)
    accepted, emitted = np.zeros((2, B), int)
    for b in range(B):
        takes = []
        for i, token in enumerate(draft_tokens[b]):
            inside = 0 <= token < V
            p, q = (draft_probs[b, i, token], target_probs[b, i, token]) if inside else (0, 0)
            good = 0 <= p <= 2.0**80 and q <= 2.0**80
            takes.append(good and coin(seed[b], offset[b], i) * p < q)
        n = takes.index(False) if False in takes else N
        accepted[b], emitted[b] = sum(takes), n
        less = n < N and 0 <= draft_tokens[b, n] < V
        draft = draft_probs[b, n] if less else np.zeros(V)
        tokens[b, :n] = draft_tokens[b, :n]
        tokens[b, n] = token_behind(target_probs[b, n], draft, [], seed[b], offset[b])
    return tokens, accepted, emitted


def test_tokens_have_the_distribution_of_the_target():
    B, N, V = 1_000_000 if os.environ.get("ANYOP_TEST_FULL") else 20_000, 3, 23
    random = np.random.default_rng(1)
    draft, target = (random.dirichlet(np.ones(V), n).astype(np.float32) for n in (N, N + 1))
    target[0, 5] = 0
    target[0] /= target[0].sum()
    drafted = np.stack(
        [random.choice(V, B, p=row / row.sum(dtype=float)) for row in draft.astype(float)], 1
    )
    tokens, accepted, emitted = anyop.verify_chain(
        np.tile(draft, (B, 1, 1)), drafted, np.tile(target, (B, 1, 1)), np.full(B, 3), np.arange(B)
    )
    for i in range(N + 1):
        some = tokens[emitted >= i, i]
        assert len(some) > B / 50
        assert_drawn(some, target[i].astype(float))
        assert (tokens[emitted < i, i] == -1).all()
    overlap = np.minimum(draft, target[:N]).sum(1)  # of each step accepted alone
    assert abs(accepted.mean() - overlap.sum()) < 5 * (N / B) ** 0.5


def test_drafts_of_the_target_itself_are_accepted():
    probs = np.random.default_rng(2).dirichlet(np.ones(40), (7, 4)).astype(np.float32)
    drafted = probs[:, :3].argmax(-1)
    given = (probs[:, :3].copy(), drafted, probs, np.arange(7), np.zeros(7, int))
    tokens, accepted, emitted = anyop.verify_chain(*given)
    np.testing.assert_array_equal(tokens[:, :3], drafted)
    assert (accepted == 3).all() and (emitted == 3).all() and (tokens[:, 3] >= 0).all()


def test_bad_rows_and_tokens():
    """Of bad tokens the target alone decides; of bad rows there is no token."""
    probs = np.full((4, 2, 8), 0.125, np.float32)
    drafted = np.array([[8], [-1], [2**62], [3]])
    target = probs.copy()
    target[3, 0, 5] = np.nan
    target[3, 0, 3] = 0
    tokens, accepted, emitted = anyop.verify_chain(
        probs[:, :1].copy(), drafted, target, np.arange(4), np.zeros(4, int)
    )
    assert (emitted == 0).all() and (accepted == 0).all() and (tokens[:, 1] == -1).all()
    assert (tokens[:3, 0] >= 0).all() and (tokens[:3, 0] < 8).all() and tokens[3, 0] == -1
