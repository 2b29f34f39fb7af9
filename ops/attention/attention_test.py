# SPDX-License-Identifier: Apache-2.0
"""attention in float64, masks that hide everything, heads split from one tensor, every pair of options."""

import itertools

import anyop
import numpy as np
import pytest


def bfloat16():
    """NumPy's type, where it has one."""
    return pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'").bfloat16


def half_unit(exact):
    """What rounding to bfloat16 may be off by."""
    return np.ldexp(1.0, np.frexp(exact)[1] - 9)


def seen_by_place(S, T, causal, offset, window_left, window_right):
    """Which keys lie where a query may see them, (S, T)."""
    ahead = np.arange(T) - np.arange(S)[:, None] - offset
    seen = np.ones((S, T), bool)
    if causal:
        seen &= ahead <= 0
    if window_left >= 0:
        seen &= ahead >= -window_left
    if window_right >= 0:
        seen &= ahead <= window_right
    return seen


def scores_of(q, k, mask, scale, softcap, alibi_slopes, offset):
    """Before keys are hidden by their places, and the derivative of the cap; k has H heads."""
    S, D, T = q.shape[2], q.shape[3], k.shape[2]
    scores = np.matmul(q, np.swapaxes(k, -1, -2))
    if D > 0:
        scores = scores * (1 / np.sqrt(D) if scale is None else scale)
    slopes = np.ones_like(scores)
    if softcap > 0:
        slopes = 1 - np.tanh(scores / softcap) ** 2
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    if alibi_slopes is not None:
        distance = np.abs(np.arange(S)[:, None] + offset - np.arange(T))
        scores = scores - np.asarray(alibi_slopes, float)[:, None, None] * distance
    return scores, slopes


def reference_with_lse(
    q, k, v, mask, scale, causal, offset, window_left, window_right, softcap, sinks, alibi_slopes
):
    H, S, T = *q.shape[1:3], k.shape[2]
    k, v = (np.repeat(x, H // x.shape[1], axis=1) for x in (k, v))
    seen = seen_by_place(S, T, causal, offset, window_left, window_right)
    with np.errstate(all="ignore"):
        scores, _ = scores_of(q, k, mask, scale, softcap, alibi_slopes, offset)
        scores = np.where(seen, scores, -np.inf)
        nothing = (scores == -np.inf).all(-1, keepdims=True)
        if sinks is not None:
            sink = np.broadcast_to(np.asarray(sinks, float)[:, None, None], (*scores.shape[:3], 1))
            scores = np.concatenate([scores, sink], -1)
        top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        top = np.where(top == -np.inf, 0, top)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        weights = weights[..., :T]
        bad = ~np.isfinite(v)
        sums = np.matmul(weights, np.where(bad, 0, v))
        if bad.any() and S:  # what a query does not see does not show
            shown = [
                (np.where(seen[s, :, None], weights[:, :, s, :, None] * v, 0)).sum(2)
                for s in range(S)
            ]
            sums = np.where(np.isfinite(np.stack(shown, 2)), sums, np.stack(shown, 2))
        out = np.where(nothing, 0, sums / total)
        return out, (top + np.log(total))[..., 0]


def reference(q, k, v, mask, scale, causal, *options, **named):
    return reference_with_lse(q, k, v, mask, scale, causal, *options, **named)[0]


def _heads(generator, B, S, H, D):
    """(B, H, S, D) as a view of (B, S, H * D), as models make it."""
    whole = generator.standard_normal((B, S, H * D)).astype(np.float32)
    return whole.reshape(B, S, H, D).transpose(0, 2, 1, 3)


# B, H, G, S, T, D, E: several blocks of keys and rows, one row, joined heads, wide heads.
CASES = [
    (1, 2, 1, 300, 1100, 40, 24),
    (2, 6, 2, 1, 2100, 16, 16),
    (2, 8, 2, 5, 200, 64, 64),
    (1, 1, 1, 70, 90, 300, 270),
    (3, 4, 4, 129, 129, 32, 32),
]


@pytest.mark.parametrize("sizes", CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_and_views(sizes, causal):
    B, H, G, S, T, D, E = sizes
    generator = np.random.default_rng(S)
    q = _heads(generator, B, S, H, D)
    k, v = _heads(generator, B, T, G, D), _heads(generator, B, T, G, E)
    masks = [
        None,
        generator.random((B, 1, 1, T)) < 0.8,
        generator.random((S, T)) < 0.5,
        generator.standard_normal((B, H, S, 1)).astype(np.float32),
        generator.standard_normal((H, S, 2 * T)).astype(np.float32)[..., ::2],
    ]
    for mask in masks:
        expected = reference(
            *(x.astype(float) for x in (q, k, v)), mask, None, causal, 0, -1, -1, 0.0, None, None
        )
        out = np.zeros((B, S, H, E), np.float32).transpose(0, 2, 1, 3)
        found = anyop.attention(q, k, v, mask, causal=causal, out=out)
        assert found is out
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("S", [1, 40])
def test_nothing_to_attend_to_gives_zero(S):
    """Neither NaN nor an average of what was hidden."""
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((2, 3, n, 8)).astype(np.float32) for n in (S, 700, 700))
    mask = np.ones((2, 1, S, 700), bool)
    mask[1, :, 0] = False
    mask[0, :, -1, :699] = False
    for given in (mask, np.where(mask, np.float32(0), np.float32(-np.inf))):
        found = anyop.attention(q, k, v, given)
        assert (found[1, :, 0] == 0).all()
        np.testing.assert_allclose(found[0, :, -1], v[0, :, -1], rtol=1e-6)
    assert (anyop.attention(q, k[:, :, :0], v[:, :, :0]) == 0).all()


OPTIONS = {
    "mask": None, "causal": True, "offset": 7, "window_left": 9, "window_right": 3, "softcap": 2.0,
    "sinks": np.array([0.5, -np.inf, 3, 0], np.float32), "scale": 0.3,
    "alibi_slopes": np.array([0.1, 0, 0.5, 0.02], np.float32),
}  # fmt: skip
NONE = {
    "mask": None, "scale": None, "causal": False, "offset": 0, "window_left": -1, "window_right": -1,
    "softcap": 0.0, "sinks": None, "alibi_slopes": None,
}  # fmt: skip


@pytest.mark.parametrize("pair", list(itertools.combinations(OPTIONS, 2)), ids="-".join)
def test_pairs_of_options(pair):
    generator = np.random.default_rng(0)
    for S, T in ((1, 16), (16, 17), (17, 129), (127, 15), (128, 128), (129, 1), (3, 0)):
        q = generator.standard_normal((1, 4, S, 7)).astype(np.float32)
        k, v = (generator.standard_normal((1, 2, T, n)).astype(np.float32) for n in (7, 5))
        given = {name: OPTIONS[name] for name in pair}
        if "mask" in pair:
            given["mask"] = generator.standard_normal((4, S, T)).astype(np.float32)
        wide = [x.astype(float) for x in (q, k, v)]
        exact, total = reference_with_lse(*wide, **NONE | given)
        out, lse = anyop.attention_with_lse(q, k, v, **given)
        np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(lse, total, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(anyop.attention(q, k, v, **given), out)


@pytest.mark.parametrize("size", [1e6, -1e6])
@pytest.mark.parametrize("S", [2, 40])
def test_large_scores(S, size):
    """Equal ones, however large, share the weights; a sink far below takes nothing, one far above all."""
    q = np.full((1, 1, S, 1), size, np.float32)
    k = np.ones((1, 1, 100, 1), np.float32)
    v = np.random.default_rng(0).standard_normal((1, 1, 100, 3)).astype(np.float32)
    for window in (-1, 5):
        given = NONE | {"scale": 1.0, "window_left": window}
        out, lse = anyop.attention_with_lse(q, k, v, **given)
        exact, total = reference_with_lse(*(x.astype(float) for x in (q, k, v)), **given)
        np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse, total, rtol=1e-6)
    far = np.array([-size], np.float32)
    out, lse = anyop.attention_with_lse(q, k, v, scale=1.0, sinks=far)
    assert (out == 0).all() == (size < 0)
    np.testing.assert_allclose(lse, abs(size), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, "bfloat16"])
@pytest.mark.parametrize("S", [3, 70])
def test_what_lies_outside_never_shows(S, dtype):
    """NaN and infinities in keys and values that other queries of the same block do see."""
    dtype = bfloat16() if dtype == "bfloat16" else dtype
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((1, 2, n, 8)).astype(dtype) for n in (S, S, S))
    given = NONE | {"window_left": 1, "window_right": 0}
    for bad in (np.nan, np.inf, -np.inf):
        place = S // 2
        worse_k, worse_v = k.copy(), v.copy()
        worse_k[:, :, place, 3] = bad
        worse_v[:, 1, place, 2] = bad
        found = anyop.attention(q, worse_k, worse_v, **given)
        expected = anyop.attention(q, k, v, **given)
        outside = [s for s in range(S) if s not in (place, place + 1)]
        np.testing.assert_array_equal(found[:, :, outside], expected[:, :, outside])
        found = anyop.attention(q, k, worse_v, **given)
        assert not np.isfinite(found[0, 1, place : place + 2, 2].astype(float)).any()
        found[0, 1, place : place + 2, 2] = 0
        assert np.isfinite(found.astype(float)).all()


@pytest.mark.parametrize("sizes", [(1, 4, 2, 300, 600, 65, 40), (2, 2, 2, 70, 90, 64, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_is_rounded_once(sizes, causal):
    """Half a unit of the result and a little: weights are not rounded to bfloat16."""
    B, H, G, S, T, D, E = sizes
    dtype, generator = bfloat16(), np.random.default_rng(S)
    shapes = (B, H, S, D), (B, G, T, D), (B, G, T, E)
    q, k, v = (generator.standard_normal(shape).astype(dtype) for shape in shapes)
    exact, total = reference_with_lse(
        *(x.astype(float) for x in (q, k, v)), **NONE | {"causal": causal}
    )
    out, lse = anyop.attention_with_lse(q, k, v, causal=causal)
    beyond = np.abs(out.astype(float) - exact) - half_unit(exact)
    assert (beyond <= 1e-4).all(), beyond.max()
    np.testing.assert_allclose(lse, total, rtol=1e-5, atol=1e-5)


def test_a_query_that_sees_nothing():
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((1, 2, n, 8)).astype(np.float32) for n in (40, 9, 9))
    out, lse = anyop.attention_with_lse(q, k, v, causal=True, offset=9 - 40)
    assert not out[:, :, :31].any() and (lse[:, :, :31] == -np.inf).all()
    assert out[:, :, 31:].all() and np.isfinite(lse[:, :, 31:]).all()
    sinks = np.array([2, -np.inf], np.float32)
    out, lse = anyop.attention_with_lse(q, k, v, causal=True, offset=9 - 40, sinks=sinks)
    assert not out[:, :, :31].any()
    np.testing.assert_array_equal(lse[0, :, :31], np.repeat(sinks[:, None], 31, 1))
    far = 2**63 - 1
    for named in ({"offset": far, "window_left": 3}, {"offset": -far, "causal": True}):
        assert not anyop.attention(q, k, v, **named).any()
    wide = anyop.attention(q, k, v, window_left=far, window_right=far)
    np.testing.assert_array_equal(wide, anyop.attention(q, k, v))


@pytest.mark.parametrize(
    "named, text",
    [
        ({"window_left": -2}, "-1 <= window_left"),
        ({"window_right": -2}, "-1 <= window_right"),
        ({"softcap": -1.0}, "softcap is -1"),
        ({"softcap": np.nan}, "softcap is"),
        ({"softcap": np.inf}, "softcap is inf"),
    ],
)
@pytest.mark.parametrize("name", ["attention", "attention_with_lse"])
def test_bad_options(name, named, text):
    q = np.ones((1, 1, 2, 4), np.float32)
    with pytest.raises(ValueError, match=text):
        getattr(anyop, name)(q, q, q, **named)
