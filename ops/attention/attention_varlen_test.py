# SPDX-License-Identifier: Apache-2.0
"""attention_varlen in float64, a sequence after the other; sequences alone; wrong places."""

import anyop
import numpy as np
import pytest
from attention_test import reference_with_lse as of_one


def reference_with_lse(
    q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal,
    window_left, window_right, softcap, sinks, alibi_slopes,
):  # fmt: skip
    (S, H, _), E = q.shape, v.shape[2]
    out, lse = np.zeros((S, H, E)), np.zeros((S, H))
    options = (window_left, window_right, softcap, sinks, alibi_slopes)
    bounds = [0, *map(int, cu_seqlens_q), S]  # what lies outside is as a sequence without keys
    keys = [0, *map(int, cu_seqlens_k), 0]
    for i in range(len(bounds) - 1):
        outside = i in (0, len(bounds) - 2)
        first, end = (0, 0) if outside else keys[i : i + 2]
        at = slice(*bounds[i : i + 2])
        heads = (x.swapaxes(0, 1)[None] for x in (q[at], k[first:end], v[first:end]))
        offset = (end - first) - (at.stop - at.start)
        found, logs = of_one(*heads, None, scale, causal, offset, *options)
        out[at], lse[at] = found[0].swapaxes(0, 1), logs[0].T
    return out, lse


def reference(q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal, *options, **named):
    return reference_with_lse(
        q, k, v, cu_seqlens_q, cu_seqlens_k, scale, causal, *options, **named
    )[0]


def packed(lengths_q, lengths_k, H=4, G=2, D=24, E=16, dtype=np.float32):
    random = np.random.default_rng(0)
    sizes = ((sum(lengths_q), H, D), (sum(lengths_k), G, D), (sum(lengths_k), G, E))
    cu = [np.cumsum([0, *lengths], dtype=np.int32) for lengths in (lengths_q, lengths_k)]
    return [random.standard_normal(size).astype(dtype) for size in sizes], cu


LENGTHS = [3, 0, 129, 1, 40], [3, 5, 200, 0, 17]


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window_left": 7}])
def test_a_sequence_is_as_alone(options):
    """Bit for bit, whatever its neighbours are; lse too, and with lse or without it."""
    (q, k, v), (cu_q, cu_k) = packed(*LENGTHS)
    out, lse = anyop.attention_varlen_with_lse(q, k, v, cu_q, cu_k, **options)
    np.testing.assert_array_equal(out, anyop.attention_varlen(q, k, v, cu_q, cu_k, **options))
    for i in range(5):
        s, t = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
        heads = (np.ascontiguousarray(x.swapaxes(0, 1))[None] for x in (q[s], k[t], v[t]))
        offset = (t.stop - t.start) - (s.stop - s.start)
        one, logs = anyop.attention_with_lse(*heads, offset=int(offset), **options)
        np.testing.assert_array_equal(out[s], one[0].swapaxes(0, 1))
        np.testing.assert_array_equal(lse[s], logs[0].T)


def test_neighbours_do_not_show():
    (q, k, v), (cu_q, cu_k) = packed(*LENGTHS)
    wanted = anyop.attention_varlen(q, k, v, cu_q, cu_k)
    k[:8], v[:8] = np.nan, np.inf
    found = anyop.attention_varlen(q, k, v, cu_q, cu_k)
    np.testing.assert_array_equal(found[3:], wanted[3:])
    assert np.isnan(found[:3]).all()


def test_queries_of_no_sequence_see_nothing():
    (q, k, v), _ = packed([10], [10])
    places = np.array([2, 5, 5, 7], np.int32)
    out, lse = anyop.attention_varlen_with_lse(q, k, v, places, places)
    assert (out[:2] == 0).all() and (out[7:] == 0).all() and out[2:7].all()
    assert (lse[:2] == -np.inf).all() and (lse[7:] == -np.inf).all()


def test_heads_of_one_tensor():
    """q, k and v as a model's product gives them: no copy."""
    (q, k, v), (cu, _) = packed([5, 60], [5, 60], H=4, G=4, D=16, E=16)
    whole = np.concatenate([x.reshape(65, 64) for x in (q, k, v)], 1)
    views = [whole[:, i * 64 : (i + 1) * 64].reshape(65, 4, 16) for i in range(3)]
    wanted = anyop.attention_varlen(q, k, v, cu, cu, causal=True)
    np.testing.assert_array_equal(anyop.attention_varlen(*views, cu, cu, causal=True), wanted)


@pytest.mark.parametrize(
    "places, message",
    [
        ([0, 4, 3, 10], r"cu_seqlens_q\[2\] is 3, expected 4 to 10"),
        ([-1, 4, 5, 10], r"cu_seqlens_q\[0\] is -1, expected 0 to 10"),
        ([0, 4, 5, 11], r"cu_seqlens_q\[3\] is 11, expected 5 to 10"),
    ],
)
def test_wrong_places(places, message):
    (q, k, v), _ = packed([10], [10])
    good, bad = np.array([0, 2, 2, 10], np.int32), np.array(places, np.int32)
    with pytest.raises(IndexError, match=message):
        anyop.attention_varlen(q, k, v, bad, good)
    with pytest.raises(IndexError, match=message.replace("_q", "_k")):
        anyop.attention_varlen(q, k, v, good, bad)
    with pytest.raises(ValueError, match="softcap is -1, expected a finite number"):
        anyop.attention_varlen(q, k, v, good, good, softcap=-1.0)
