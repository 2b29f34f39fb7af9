# SPDX-License-Identifier: Apache-2.0
"""mla_sparse in float64 over the listed rows; sinks, lengths, rows that nobody lists; wrong places."""

import anyop
import numpy as np
import pytest
from mla_decode_test import over_rows


def listed(indices, lengths, t):
    """The rows of token t."""
    counted = indices[t] if lengths is None else indices[t, : lengths[t]]
    return counted[counted >= 0]


def reference(q, cache, indices, R, scale, lengths, sinks):
    T, H, W = q.shape
    out, lse = np.zeros((T, H, R)), np.zeros((T, H))
    rows = cache.reshape(cache.shape[0] * cache.shape[1], W)
    for t in range(T):
        own = over_rows(q[t : t + 1], rows[listed(indices, lengths, t)], R, scale, sinks=sinks)
        out[t], lse[t] = own[0][0], own[1][0]
    return out, lse


T, H, W, R, N, P, K = 9, 5, 24, 16, 7, 16, 40
NONE = {"R": R, "scale": None, "lengths": None, "sinks": None}


def chosen(dtype=np.float32, tokens=T):
    """Random indices, some of them -1. The rows that no token lists are NaN, as is what is listed behind lengths."""
    random = np.random.default_rng(0)
    indices = np.stack([random.permutation(N * P)[:K] for _ in range(tokens)]).astype(np.int32)
    indices[random.random(indices.shape) < 0.2] = -1
    lengths = random.integers(0, K + 1, tokens).astype(np.int32)
    lengths[:3] = 0, 1, K
    cache = random.standard_normal((N * P, W)).astype(dtype)
    seen = np.concatenate([listed(indices, lengths, t) for t in range(tokens)])
    cache[np.setdiff1d(np.arange(N * P), seen)] = np.nan
    indices[np.arange(K) >= lengths[:, None]] = 2**31 - 1
    return {
        "q": random.standard_normal((tokens, H, W)).astype(dtype),
        "cache": cache.reshape(N, P, W),
        "indices": indices,
        "lengths": lengths,
    }


def compare(given, tolerance=1e-5, **options):
    """With float64; the results."""
    options = {"R": R} | options
    found = anyop.mla_sparse(**given, **options)
    for result, exact in zip(found, reference(**NONE | given | options)):
        np.testing.assert_allclose(result, exact, rtol=tolerance, atol=tolerance)
    return found


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float16, 1e-3)])
def test_what_is_listed_and_no_more(dtype, tolerance):
    out, lse = compare(chosen(dtype), tolerance)
    assert not out[0].any() and (lse[0] == -np.inf).all()


def test_sinks_are_in_the_sum_and_have_no_value():
    given, sinks = chosen(), np.array([0.5, -np.inf, 3, 0, -2], np.float32)
    out, lse = compare(given, sinks=sinks)
    np.testing.assert_allclose(lse[0], sinks)  # a token that sees nothing
    without, logs = anyop.mla_sparse(**given, R=R)
    seen = np.isfinite(logs[:, 0])
    share = np.exp(logs[seen] - np.logaddexp(logs[seen], sinks))
    np.testing.assert_allclose(out[seen], without[seen] * share[..., None], rtol=1e-5, atol=1e-6)


def test_indices_in_any_order_and_twice():
    """-1 between them changes no bit; one that comes twice weighs twice."""
    given = chosen()
    places = np.flatnonzero(np.isfinite(given["cache"]).all(2)).astype(np.int32)[:8]
    some = {name: given[name][:1] for name in ("q",)} | {"cache": given["cache"]}
    plain = anyop.mla_sparse(**some, indices=places[None], R=R)
    holes = np.insert(places, [0, 3, 3, 8], -1)[None]
    for found, right in zip(anyop.mla_sparse(**some, indices=holes, R=R), plain):
        np.testing.assert_array_equal(found, right)
    compare(some, indices=np.concatenate([places, places[2:5]])[None])


def test_all_rows_are_as_dense_decoding():
    """Of a sequence, its pages in their order."""
    random = np.random.default_rng(0)
    cache = random.standard_normal((N, P, W)).astype(np.float32)
    q = random.standard_normal((1, 1, H, W)).astype(np.float32)
    table, length = np.array([[4, 0, 6]], np.int32), 41
    dense = anyop.mla_decode(q, cache, table, np.array([length], np.int32), R)
    indices = (table[0, :, None] * P + np.arange(P, dtype=np.int32)).reshape(1, -1)[:, :length]
    sparse = anyop.mla_sparse(q[0], cache, indices.copy(), R)
    for found, right in zip(sparse, dense):
        np.testing.assert_allclose(found, right[0], rtol=1e-5, atol=1e-6)


def test_sizes_of_deepseek():
    random = np.random.default_rng(0)
    given = {
        "q": random.standard_normal((3, 64, 576)).astype(np.float16),
        "cache": random.standard_normal((8, 64, 576)).astype(np.float16),
        "indices": np.stack([random.permutation(512)[:256] for _ in range(3)]).astype(np.int32),
    }
    compare(given, 1e-3, R=512, scale=192**-0.5)


@pytest.mark.parametrize("size", [-1e6, 1e6])
def test_scores_far_from_zero(size):
    """Equal keys have equal weights however far from 0 their score is."""
    given = chosen()
    given["cache"][...] = np.where(np.isnan(given["cache"]), np.nan, 1)
    given["q"][...] = 0
    given["q"][..., 0] = size
    out, lse = compare(given, scale=1.0)
    np.testing.assert_allclose(out[1:][np.isfinite(lse[1:])], 1, rtol=1e-6)
    assert np.isfinite(lse[2:]).all()


def test_a_token_has_the_bits_that_it_has_alone():
    """Whatever the others list."""
    given = chosen()
    out, lse = anyop.mla_sparse(**given, R=R)
    for t in range(T):
        own = {name: given[name][t : t + 1] for name in ("q", "indices", "lengths")}
        one, logs = anyop.mla_sparse(**given | own, R=R)
        np.testing.assert_array_equal(one[0], out[t])
        np.testing.assert_array_equal(logs[0], lse[t])


def test_views_are_read_where_they_lie():
    """A cache whose pages have room behind them, as long as no whole number of rows."""
    given = chosen()
    room = np.full((N, P * W + 7), np.nan, np.float32)
    view = np.lib.stride_tricks.as_strided(room, (N, P, W), (room.strides[0], W * 4, 4))
    view[...] = given["cache"]
    expected = anyop.mla_sparse(**given, R=R)
    for found, right in zip(anyop.mla_sparse(**given | {"cache": view}, R=R), expected):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"indices": [[0, 1], [3, 48]]}, IndexError, r"indices\[1, 1\] is 48, expected -1 <= index < 48"),
        ({"indices": [[0, -2], [3, 4]]}, IndexError, r"indices\[0, 1\] is -2, expected -1 <= index < 48"),
        ({"lengths": [2, 3]}, IndexError, r"lengths\[1\] is 3, expected 0 to 2"),
        ({"lengths": [-1, 2]}, IndexError, r"lengths\[0\] is -1, expected 0 to 2"),
        ({"lengths": [1, 2, 1]}, ValueError, "lengths has shape"),
        ({"R": 0}, ValueError, "expected 0 < R"),
        ({"R": 9}, ValueError, "expected R <= W"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)  # fmt: skip
def test_bad_input(change, error, message):
    """Nothing is written."""
    given = {
        "q": np.ones((2, 3, 8), np.float32),
        "cache": np.ones((6, 8, 8), np.float32),
        "indices": np.array([[0, -1], [47, 5]], np.int32),
        "R": 4,
    }
    change = {k: np.array(v, np.int32) if isinstance(v, list) else v for k, v in change.items()}
    given |= change
    out = np.full((2, 3, max(given["R"], 1)), 7, np.float32)
    with pytest.raises(error, match=message):
        anyop.mla_sparse(**given, out=out)
    assert (out == 7).all()
