# SPDX-License-Identifier: Apache-2.0
"""attention_backward in float64, masks that hide everything, groups, either gradient alone."""

import anyop
import numpy as np
import pytest


def reference(grad_out, q, k, v, mask, scale, causal):
    B, H, S, D = q.shape
    G, T = k.shape[1:3]
    wide_k, wide_v = (np.repeat(x, H // G, axis=1) for x in (k, v))
    factor = 0 if D == 0 else 1 / np.sqrt(D) if scale is None else scale
    with np.errstate(all="ignore"):
        scores = np.matmul(q, np.swapaxes(wide_k, -1, -2)) * factor
        if mask is not None:
            scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
        if causal:
            scores = np.where(np.arange(T) <= np.arange(S)[:, None], scores, -np.inf)
        top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(top == -np.inf, 0, top))
        total = weights.sum(-1, keepdims=True)
        weights = np.where(total == 0, 0, weights / total)
        slopes = np.matmul(grad_out, np.swapaxes(wide_v, -1, -2))
        slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True)) * factor
        grad_q = np.matmul(slopes, wide_k)
        grad_k = np.matmul(np.swapaxes(slopes, -1, -2), q)
        grad_v = np.matmul(np.swapaxes(weights, -1, -2), grad_out)
    grouped = (x.reshape(B, G, H // G, T, x.shape[-1]).sum(2) for x in (grad_k, grad_v))
    return grad_q, *grouped


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
        exact = reference(*(x.astype(float) for x in (grad, q, k, v)), mask, None, causal)
        found = anyop.attention_backward(grad, q, k, v, mask, causal=causal)
        for result, expected in zip(found, exact, strict=True):
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


def test_nothing_to_attend_to_gives_zero():
    generator = np.random.default_rng(0)
    grad, q, k, v = (generator.standard_normal((2, 3, 40, 8)).astype(np.float32) for _ in range(4))
    mask = np.ones((2, 1, 40, 40), bool)
    mask[1] = False
    mask[0, :, 5] = False
    for given in (mask, np.where(mask, np.float32(0), np.float32(-np.inf))):
        grad_q, grad_k, grad_v = anyop.attention_backward(grad, q, k, v, given)
        assert not grad_q[1].any() and not grad_k[1].any() and not grad_v[1].any()
        assert not grad_q[0, :, 5].any() and grad_q[0, :, 6].all()


@pytest.mark.parametrize("wanted", ["grad_q", "grad_k", "grad_v"])
def test_one_gradient_alone(wanted):
    generator = np.random.default_rng(0)
    tensors = [generator.standard_normal((2, 3, 50, 8)).astype(np.float32) for _ in range(4)]
    names = ["grad_q", "grad_k", "grad_v"]
    whole = dict(zip(names, anyop.attention_backward(*tensors), strict=True))
    unwanted = {name: False for name in names if name != wanted}
    found = dict(zip(names, anyop.attention_backward(*tensors, **unwanted), strict=True))
    np.testing.assert_array_equal(found.pop(wanted), whole[wanted])
    assert list(found.values()) == [None, None]
