# SPDX-License-Identifier: Apache-2.0
"""attention in float64, masks that hide everything, and heads split from one tensor."""

import anyop
import numpy as np
import pytest


def reference(q, k, v, mask, scale, causal):
    H, S, D = q.shape[1:]
    k, v = (np.repeat(x, H // x.shape[1], axis=1) for x in (k, v))
    T = k.shape[2]
    with np.errstate(all="ignore"):
        scores = np.matmul(q, np.swapaxes(k, -1, -2))
        if D > 0:
            scores = scores * (1 / np.sqrt(D) if scale is None else scale)
        if mask is not None:
            scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
        if causal:
            scores = np.where(np.arange(T) <= np.arange(S)[:, None], scores, -np.inf)
        top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(top == -np.inf, 0, top))
        total = weights.sum(-1, keepdims=True)
        return np.where(total == 0, 0, np.matmul(weights, v) / total)


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
        expected = reference(*(x.astype(float) for x in (q, k, v)), mask, None, causal)
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
