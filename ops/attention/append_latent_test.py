# SPDX-License-Identifier: Apache-2.0
"""append_latent in float64: what mla_decode reads back, pages with room behind them, skipped tokens, slots outside."""

import anyop
import numpy as np
import pytest


def reference(cache, latent, rope, slots):
    P = cache.shape[1]
    assert ((slots >= -1) & (slots < cache.shape[0] * P)).all()
    for t, slot in enumerate(slots):
        if slot >= 0:
            cache[slot // P, slot % P] = [*latent[t], *rope[t]]


@pytest.mark.parametrize("slots_dtype", [np.int32, np.int64])
def test_views_and_skipped_tokens(slots_dtype):
    """Halves of one tensor, to a cache whose pages and rows have room behind them: the room stays."""
    random = np.random.default_rng(0)
    N, P, R, rope, T = 5, 4, 6, 3, 7
    room = random.standard_normal((N, P + 2, R + rope + 1)).astype(np.float32)
    cache, exact = room[:, :P, :-1], room.copy()
    rows = random.standard_normal((T, R + rope)).astype(np.float32)
    slots = np.array([3, -1, 19, 0, 7, -1, 8], slots_dtype)
    reference(exact[:, :P, :-1], rows[:, :R], rows[:, R:], slots)
    anyop.append_latent(cache, rows[:, :R], rows[:, R:], slots)
    np.testing.assert_array_equal(room, exact)
    np.testing.assert_array_equal(cache[4, 3], rows[2])


def test_steps_are_read_by_mla_decode():
    """Prompts and steps of uneven sequences, written token by token: as attention over all rows of each."""
    random = np.random.default_rng(0)
    P, H, R, rope, lengths = 8, 3, 16, 4, (13, 1, 30)
    rows = [random.standard_normal((n, R + rope)).astype(np.float32) for n in lengths]
    cache = np.full((9, P, R + rope), np.nan, np.float32)
    table = np.array([[7, 2, -1, -1], [4, -1, -1, -1], [0, 8, 3, 5]], np.int32)
    slots = [table[b, np.arange(n) // P] * P + np.arange(n) % P for b, n in enumerate(lengths)]
    tokens = np.concatenate(rows)
    anyop.append_latent(cache, tokens[:, :R], tokens[:, R:], np.concatenate(slots))
    q = random.standard_normal((3, 1, H, R + rope)).astype(np.float32)
    out, lse = anyop.mla_decode(q, cache, table, np.array(lengths, np.int32), R)
    for b in range(3):
        keys = np.broadcast_to(rows[b], (1, 1, *rows[b].shape))
        queries = q[b].swapaxes(0, 1)[None]
        right = anyop.attention_with_lse(queries, keys, keys[..., :R].copy())
        np.testing.assert_allclose(out[b, 0], right[0][0, :, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse[b, 0], right[1][0, :, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("slot", [-2, 8, 2**31 - 1, -(2**31)])
def test_a_slot_outside_writes_nothing(slot):
    cache, latent = np.zeros((2, 4, 5), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(IndexError, match=rf"slots\[1\] is {slot}, expected -1 <= slot < 8"):
        anyop.append_latent(cache, latent, latent[:, :2], np.array([0, slot], np.int32))
    assert not cache.any()


@pytest.mark.parametrize("R, rope", [(3, 3), (6, 0), (0, 4)])
def test_halves_that_are_no_row(R, rope):
    cache, slots = np.zeros((2, 4, 5), np.float32), np.zeros(1, np.int32)
    halves = [np.ones((1, n), np.float32) for n in (R, rope)]
    with pytest.raises(ValueError, match="append_latent: rope has shape"):
        anyop.append_latent(cache, *halves, slots)
    assert not cache.any()
