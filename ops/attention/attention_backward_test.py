# SPDX-License-Identifier: Apache-2.0
"""attention_backward in float64, masks that hide everything, groups, options, either gradient alone."""

import anyop
import numpy as np
import pytest
from attention_test import (
    NONE,
    OPTIONS,
    bfloat16,
    half_unit,
    reference_with_lse,
    scores_of,
    seen_by_place,
)


def reference(
    grad_out, q, k, v, out, lse, grad_lse, mask, scale, causal, offset, window_left, window_right,
    softcap, sinks, alibi_slopes,
):  # fmt: skip
    B, H, S, D = q.shape
    G, T = k.shape[1:3]
    wide_k, wide_v = (np.repeat(x, H // G, axis=1) for x in (k, v))
    seen = seen_by_place(S, T, causal, offset, window_left, window_right)
    with np.errstate(all="ignore"):
        scores, caps = scores_of(q, wide_k, mask, scale, softcap, alibi_slopes, offset)
        base = np.where(lse == -np.inf, 0, lse)[..., None]
        weights = np.exp(np.where(seen, scores, -np.inf) - base)
        delta = (grad_out * out).sum(-1, keepdims=True)
        if grad_lse is not None:
            delta = delta - grad_lse[..., None]
        slopes = weights * (np.matmul(grad_out, np.swapaxes(wide_v, -1, -2)) - delta)
        factor = 0 if D == 0 else 1 / np.sqrt(D) if scale is None else scale
        slopes = np.where(seen, slopes * caps * factor, 0)
        grad_q = np.matmul(slopes, wide_k)
        grad_k = np.matmul(np.swapaxes(slopes, -1, -2), q)
        grad_v = np.matmul(np.swapaxes(weights, -1, -2), grad_out)
        grad_sinks = np.zeros(H)
        if sinks is not None:
            grad_sinks = -(np.exp(np.asarray(sinks, float)[:, None, None] - base) * delta)
            grad_sinks = grad_sinks.sum((0, 2, 3))
    grouped = (x.reshape(B, G, H // G, T, x.shape[-1]).sum(2) for x in (grad_k, grad_v))
    return grad_q, *grouped, grad_sinks


def forward(q, k, v, **options):
    """out and lse in float64, and of float32."""
    exact = reference_with_lse(*(x.astype(float) for x in (q, k, v)), **NONE | options)
    return exact, anyop.attention_with_lse(q, k, v, **options)


# B, H, G, S, T, D, E: several blocks of queries, one query, more keys than a block of scores.
CASES = [(1, 2, 1, 300, 700, 40, 24), (2, 6, 2, 1, 900, 16, 16), (2, 4, 4, 129, 129, 32, 32)]
CASES += [(1, 1, 1, 20, 70000, 2, 3)]


def _heads(generator, B, S, H, D):
    """(B, H, S, D) as a view of (B, S, H * D), as models make it."""
    whole = generator.standard_normal((B, S, H * D)).astype(np.float32)
    return whole.reshape(B, S, H, D).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("sizes", CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_and_views(sizes, causal):
    B, H, G, S, T, D, E = sizes
    generator = np.random.default_rng(S)
    q, grad = _heads(generator, B, S, H, D), _heads(generator, B, S, H, E)
    k, v = _heads(generator, B, T, G, D), _heads(generator, B, T, G, E)
    masks = [None, generator.random((B, 1, 1, T)) < 0.8, generator.random((S, T)) < 0.5]
    masks += [generator.standard_normal((S, 2 * T)).astype(np.float32)[..., ::2]]
    for mask in masks:
        options = {"mask": mask, "causal": causal}
        (exact_out, exact_lse), saved = forward(q, k, v, **options)
        wide = (x.astype(float) for x in (grad, q, k, v))
        exact = reference(*wide, exact_out, exact_lse, None, **NONE | options)
        found = anyop.attention_backward(grad, q, k, v, *saved, **options)
        for result, expected in zip(found, exact, strict=True):
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


def test_nothing_to_attend_to_gives_zero():
    generator = np.random.default_rng(0)
    grad, q, k, v = (generator.standard_normal((2, 3, 40, 8)).astype(np.float32) for _ in range(4))
    mask = np.ones((2, 1, 40, 40), bool)
    mask[1] = False
    mask[0, :, 5] = False
    for given in (mask, np.where(mask, np.float32(0), np.float32(-np.inf))):
        saved = anyop.attention_with_lse(q, k, v, given)
        grad_q, grad_k, grad_v, _ = anyop.attention_backward(grad, q, k, v, *saved, mask=given)
        assert not grad_q[1].any() and not grad_k[1].any() and not grad_v[1].any()
        assert not grad_q[0, :, 5].any() and grad_q[0, :, 6].all()


@pytest.mark.parametrize("wanted", ["grad_q", "grad_k", "grad_v"])
def test_one_gradient_alone(wanted):
    generator = np.random.default_rng(0)
    tensors = [generator.standard_normal((2, 3, 50, 8)).astype(np.float32) for _ in range(4)]
    tensors += anyop.attention_with_lse(*tensors[1:])
    names = ["grad_q", "grad_k", "grad_v", "grad_sinks"]
    whole = dict(zip(names, anyop.attention_backward(*tensors), strict=True))
    unwanted = {name: False for name in names if name != wanted}
    found = dict(zip(names, anyop.attention_backward(*tensors, **unwanted), strict=True))
    np.testing.assert_array_equal(found.pop(wanted), whole[wanted])
    assert list(found.values()) == [None, None, None]


@pytest.mark.parametrize("first", list(OPTIONS))
def test_slopes_of_pairs_of_options(first):
    """The derivative of a weighted sum of out and lse, by differences in float64."""
    generator = np.random.default_rng(0)
    B, H, G, S, T, D, E = 1, 4, 2, 6, 9, 3, 5
    inputs = [generator.standard_normal(n) for n in ((B, H, S, D), (B, G, T, D), (B, G, T, E))]
    by_out, by_lse = generator.standard_normal((B, H, S, E)), generator.standard_normal((B, H, S))
    by_lse = by_lse.astype(np.float32)
    for second in OPTIONS:
        given = {name: OPTIONS[name] for name in (first, second)}
        if "mask" in given:
            given["mask"] = generator.random((S, T)) < 0.7
        given["sinks"] = np.array([0.5, -1, 2, 0], np.float32) if "sinks" in given else None

        def loss(tensors, options):
            out, lse = reference_with_lse(*tensors, **NONE | options)
            return (out * by_out).sum() + np.where(lse == -np.inf, 0, lse * by_lse).sum()

        out, lse = anyop.attention_with_lse(*inputs, **given)
        found = anyop.attention_backward(by_out, *inputs, out, lse, by_lse, **given)
        for at, gradient in enumerate(found[:3]):
            step = generator.standard_normal(inputs[at].shape)
            moved = [list(inputs), list(inputs)]
            moved[0][at], moved[1][at] = inputs[at] + 1e-6 * step, inputs[at] - 1e-6 * step
            slope = (loss(moved[0], given) - loss(moved[1], given)) / 2e-6
            np.testing.assert_allclose((gradient * step).sum(), slope, rtol=1e-6, atol=1e-6)
        if given["sinks"] is not None:
            step = np.array([1, 0.5, -1, 2])
            sides = [given | {"sinks": given["sinks"] + sign * 1e-6 * step} for sign in (1, -1)]
            slope = (loss(inputs, sides[0]) - loss(inputs, sides[1])) / 2e-6
            np.testing.assert_allclose((found[3] * step).sum(), slope, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, "bfloat16"])
@pytest.mark.parametrize("S", [30, 200])
def test_what_lies_outside_never_shows(S, dtype):
    dtype = bfloat16() if dtype == "bfloat16" else dtype
    generator = np.random.default_rng(0)
    grad, q, k, v = (generator.standard_normal((1, 2, S, 8)).astype(dtype) for _ in range(4))
    options, place = {"window_left": 1, "window_right": 0}, S // 2
    out, lse = anyop.attention_with_lse(q, k, v, **options)
    expected = anyop.attention_backward(grad, q, k, v, out, lse, **options)
    k[:, :, place], v[:, :, place] = np.nan, np.inf
    out, lse = anyop.attention_with_lse(q, k, v, **options)
    found = anyop.attention_backward(grad, q, k, v, out, lse, **options)
    queries = [s for s in range(S) if s not in (place, place + 1)]
    np.testing.assert_array_equal(found[0][:, :, queries], expected[0][:, :, queries])
    keys = [t for t in range(S) if not place - 1 <= t <= place + 1]
    np.testing.assert_array_equal(found[1][:, :, keys], expected[1][:, :, keys])
    np.testing.assert_array_equal(found[2][:, :, keys], expected[2][:, :, keys])


def test_bfloat16_is_rounded_once():
    """Half a unit of the result and a little: weights and slopes are not rounded to bfloat16."""
    dtype, generator = bfloat16(), np.random.default_rng(0)
    shapes = (1, 4, 150, 40), (1, 4, 150, 65), (1, 2, 170, 65), (1, 2, 170, 40)
    grad, q, k, v = (generator.standard_normal(shape).astype(dtype) for shape in shapes)
    for options in ({"causal": True}, {"softcap": 2.0, "window_left": 70}):
        out, lse = anyop.attention_with_lse(q, k, v, **options)
        wide = (x.astype(float) for x in (grad, q, k, v, out, lse))
        exact = reference(*wide, None, **NONE | options)
        for result, expected in zip(
            anyop.attention_backward(grad, q, k, v, out, lse, **options)[:3], exact, strict=False
        ):
            beyond = np.abs(result.astype(float) - expected) - half_unit(expected)
            assert (beyond <= 2e-4).all(), beyond.max()


def test_bad_softcap():
    x = np.ones((1, 1, 2, 4), np.float32)
    with pytest.raises(ValueError, match="softcap is -2"):
        anyop.attention_backward(x, x, x, x, x, x[..., 0].copy(), softcap=-2.0)
