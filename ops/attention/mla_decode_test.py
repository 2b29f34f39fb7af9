# SPDX-License-Identifier: Apache-2.0
"""mla_decode in float64 over gathered rows; drafts, pages of every size; what nobody may see; wrong places."""

import math

import anyop
import numpy as np
import pytest
from attention_test import reference_with_lse as of_one


def over_rows(q, rows, R, scale, causal=False, sinks=None):
    """Queries (S, H, W) over the keys of one sequence (length, W), which all heads share: (S, H, R), (S, H)."""
    S, rows = len(q), rows.astype(float)
    queries = q.astype(float).swapaxes(0, 1)[None]
    keys, values = rows[None, None], rows[None, None, :, :R]
    options = (scale, causal, len(rows) - S, -1, -1, 0.0, sinks, None)
    out, lse = of_one(queries, keys, values, None, *options)
    return out[0].swapaxes(0, 1), lse[0].T


def reference(q, cache, page_table, seqlens_k, R, scale, causal, split_size):
    (B, S, H, W), P = q.shape, cache.shape[1]
    out, lse = np.zeros((B, S, H, R)), np.zeros((B, S, H))
    for b, length in enumerate(map(int, seqlens_k)):
        pages = np.asarray(page_table[b, : -(-length // P)] if length else [], int)
        rows = cache[pages].reshape(len(pages) * P, W)[:length]
        out[b], lse[b] = over_rows(q[b], rows, R, scale, causal)
    return out, lse


H, W, R = 5, 24, 16
LENGTHS = (0, 1, 15, 16, 17, 127, 128, 129)


def served(lengths, S=1, P=16, dtype=np.float32):
    """Random sequences. What belongs to none of them is NaN, and what the table says behind its pages is no page."""
    random = np.random.default_rng(0)
    counts = [-(-n // P) for n in lengths]
    pages = random.permutation(sum(counts) + 3).astype(np.int32)  # and some that nobody has
    table = np.where(random.random((len(lengths), max(counts) + 2)) < 0.5, -1, 2**31 - 1)
    cache = np.full((len(pages), P, W), np.nan, dtype)
    for b, n in enumerate(lengths):
        own = pages[sum(counts[:b]) :][: counts[b]]
        table[b, : counts[b]] = own
        for j, page in enumerate(own):
            rows = cache[page, : min(P, n - j * P)]
            rows[...] = random.standard_normal(rows.shape)
    return {
        "q": random.standard_normal((len(lengths), S, H, W)).astype(dtype),
        "cache": cache,
        "page_table": table.astype(np.int32),
        "seqlens_k": np.array(lengths, np.int32),
    }


def compare(given, R=R, scale=None, causal=True, tolerance=1e-5):
    """With float64; the results."""
    found = anyop.mla_decode(**given, R=R, scale=scale, causal=causal)
    for result, exact in zip(
        found, reference(**given, R=R, scale=scale, causal=causal, split_size=0)
    ):
        np.testing.assert_allclose(result, exact, rtol=tolerance, atol=tolerance)
    return found


@pytest.mark.parametrize("S", [1, 2, 8])
@pytest.mark.parametrize("P", [1, 16, 64, 256])
def test_pages_of_any_size(P, S):
    """Tokens and drafts; of a sequence with fewer keys than queries the first queries see nothing."""
    out, lse = compare(served(LENGTHS, S, P))
    nothing = [(b, s) for b, n in enumerate(LENGTHS) for s in range(S) if s + n < S]
    assert len(nothing) == (lse == -np.inf).all(2).sum() == (out == 0).all((2, 3)).sum()
    assert all(not out[at].any() for at in nothing)


def test_a_page_shared_by_two():
    given = served((40, 33, 7))
    given["page_table"][2, 0] = given["page_table"][0, 0]  # sequences 0 and 2 begin alike
    compare(given)


def test_sizes_of_deepseek():
    """Several blocks of heads, and rows of 576 numbers of which 512 are the value."""
    random = np.random.default_rng(0)
    given = {
        "q": random.standard_normal((2, 2, 128, 576)).astype(np.float16),
        "cache": random.standard_normal((5, 64, 576)).astype(np.float16),
        "page_table": np.array([[4, 0, 2], [1, 3, 0]], np.int32),
        "seqlens_k": np.array([150, 70], np.int32),
    }
    compare(given, R=512, scale=192**-0.5, tolerance=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [-1e6, 1e6])
def test_scores_far_from_zero(size, causal):
    """Equal keys have equal weights however far from 0 their score is."""
    given = served((40, 3, 90), 2)
    given["cache"][..., 0] = 1
    given["cache"][..., 1:] = np.where(np.isnan(given["cache"][..., 1:]), 0, 1)
    given["q"][...] = 0
    given["q"][..., 0] = size
    out, lse = compare(given, scale=1.0, causal=causal)
    np.testing.assert_allclose(out, np.ones_like(out), rtol=1e-6)
    np.testing.assert_allclose(lse, size, rtol=1e-4)


def test_nan_shows_where_it_is_seen():
    """In the token's own row, but not to the draft before it."""
    given = served((17,), 2)
    page = given["page_table"][0, 1]
    given["cache"][page, 0, 3] = np.nan
    out, lse = anyop.mla_decode(**given, R=R)
    assert np.isfinite(out[0, 0]).all() and np.isfinite(lse[0, 0]).all()
    assert np.isnan(out[0, 1]).all() and np.isnan(lse[0, 1]).all()


@pytest.mark.parametrize("split_size", [0, 1, 64])
@pytest.mark.parametrize("S", [1, 3])
def test_a_sequence_has_the_bits_that_it_has_alone(S, split_size):
    """Whatever its neighbours and its pages are."""
    given = served(LENGTHS, S)
    out, lse = anyop.mla_decode(**given, R=R, split_size=split_size)
    for b in range(len(LENGTHS)):
        own = {name: given[name][b : b + 1] for name in ("q", "page_table", "seqlens_k")}
        one, logs = anyop.mla_decode(**given | own, R=R)
        np.testing.assert_array_equal(one[0], out[b])
        np.testing.assert_array_equal(logs[0], lse[b])


def test_views_are_read_where_they_lie():
    """A cache whose pages have room behind them, queries that were split from more."""
    given = served(LENGTHS, 2)
    room = np.full((len(given["cache"]), 20, W + 8), np.nan, np.float32)
    room[:, 2:18, :W] = given["cache"]
    wide = np.full((8, 2, H + 1, W + 8), np.nan, np.float32)
    wide[:, :, 1:, 8:] = given["q"]
    expected = anyop.mla_decode(**given, R=R)
    views = {"cache": room[:, 2:18, :W], "q": wide[:, :, 1:, 8:]}
    for found, right in zip(anyop.mla_decode(**given | views, R=R), expected):
        np.testing.assert_array_equal(found, right)


def test_parts_are_joined():
    """A shared prefix without causal, and the rest; the logarithms fit merge_states as they are."""
    given = served((48, 48), 2)
    whole = anyop.mla_decode(**given, R=R)
    first, rest = (
        given | {"page_table": table.copy(), "seqlens_k": np.array([n, n], np.int32)}
        for table, n in ((given["page_table"][:, :2], 32), (given["page_table"][:, 2:], 16))
    )
    parts = [anyop.mla_decode(**first, R=R, causal=False), anyop.mla_decode(**rest, R=R)]
    for found, right in zip(anyop.merge_states(*zip(*parts)), whole):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_as_attention_before_absorption():
    """Heads with matrices of their own: (n, C) latent numbers, from which each head makes keys and values."""
    random = np.random.default_rng(0)
    n, heads, C, nope, rope, E = 37, 4, 32, 12, 8, 10
    latent, k_rope = (random.standard_normal((n, d)).astype(np.float32) for d in (C, rope))
    to_k, to_v = (random.standard_normal((heads, C, d)).astype(np.float32) / 6 for d in (nope, E))
    q = random.standard_normal((heads, 1, nope + rope)).astype(np.float32)
    keys = np.concatenate([latent @ to_k, np.broadcast_to(k_rope, (heads, n, rope))], 2)
    exact = anyop.attention(q[None], keys[None], (latent @ to_v)[None])[0, :, 0]

    absorbed = np.einsum("hd,hcd->hc", q[:, 0, :nope], to_k)
    row = np.concatenate([absorbed, q[:, 0, nope:]], 1)[None, None]
    cache = np.full((5, 8, C + rope), np.nan, np.float32)
    table = np.array([[3, 0, 4, 1, 2]], np.int32)
    slots = (table[0].repeat(8) * 8 + np.tile(np.arange(8), 5))[:n]
    cache.reshape(40, -1)[slots] = np.concatenate([latent, k_rope], 1)
    scale = 1 / math.sqrt(nope + rope)
    out, _ = anyop.mla_decode(row, cache, table, np.array([n], np.int32), C, scale=scale)
    found = np.einsum("hc,hce->he", out[0, 0], to_v)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"seqlens_k": [5, 17, 0]}, IndexError, r"seqlens_k\[1\] is 17, expected 0 to 16"),
        ({"seqlens_k": [-1, 3, 0]}, IndexError, r"seqlens_k\[0\] is -1, expected 0 to 16"),
        ({"seqlens_k": [9, 3, 0]}, IndexError, r"page_table\[0, 1\] is 6, expected 0 <= page < 6"),
        ({"seqlens_k": [5, 3, 1]}, IndexError, r"page_table\[2, 0\] is -3, expected 0 <= page < 6"),
        ({"split_size": -1}, ValueError, "expected 0 <= split_size"),
        ({"R": 0}, ValueError, "expected 0 < R"),
        ({"R": 9}, ValueError, "expected R <= W"),
        ({"q": np.ones((3, 2, 4, 9), np.float32)}, ValueError, r"cache has shape \(6, 8, 8\)"),
        ({"q": np.ones((3, 2, 4, 8), np.float16)}, TypeError, "cache has dtype float32"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_bad_input(change, error, message):
    """Nothing is written."""
    given = {
        "q": np.ones((3, 2, 4, 8), np.float32),
        "cache": np.ones((6, 8, 8), np.float32),
        "page_table": np.array([[5, 6], [2, 0], [-3, 7]], np.int32),
        "seqlens_k": np.array([5, 16, 0], np.int32),
        "R": 4,
    }
    change = {k: np.array(v, np.int32) if isinstance(v, list) else v for k, v in change.items()}
    given |= change
    out = np.full((3, 2, 4, max(given["R"], 1)), 7, np.float32)
    with pytest.raises(error, match=message):
        anyop.mla_decode(**given, out=out)
    assert (out == 7).all()
