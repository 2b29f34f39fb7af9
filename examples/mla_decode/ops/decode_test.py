# SPDX-License-Identifier: Apache-2.0
"""decode in float64, part by part."""

import numpy as np


def reference(q, cache, pages, lengths, R, scale, splits):
    B, H, W = q.shape
    scale = W**-0.5 if scale is None else scale
    S = cache.shape[1]
    partial, lse = np.zeros((B, splits, H, R)), np.full((B, splits, H), -np.inf)
    for b, length in enumerate(lengths):
        tokens = cache[pages[b, : -(-int(length) // S) if S else 0]].reshape(-1, W)[:length]
        size = -(-int(length) // splits)
        for k in range(splits):
            partial[b, k], lse[b, k] = attention(q[b], tokens[k * size : (k + 1) * size], R, scale)
    return partial, lse


def attention(q, tokens, R, scale):
    """The attention (H, R) of queries (H, W) with tokens (T, W), and its log-sum-exp (H)."""
    with np.errstate(all="ignore"):
        scores = scale * np.matmul(q, tokens.T)
        most = np.max(scores, -1, keepdims=True, initial=-np.inf)
        base = np.where(most == -np.inf, 0, most)
        weights = np.exp(scores - base)
        total = weights.sum(-1, keepdims=True)
        out = np.where(total == 0, 0, np.matmul(weights, tokens[:, :R]) / total)
        return out, np.where(total == 0, -np.inf, base + np.log(total))[:, 0]
