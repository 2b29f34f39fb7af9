# SPDX-License-Identifier: Apache-2.0
"""sparse_decode in float64, part by part."""

import numpy as np


def reference(q, cache, indices, R, scale, splits):
    B, H, W = q.shape
    scale = W**-0.5 if scale is None else scale
    rows, T = cache.reshape(-1, W), indices.shape[1]
    partial, lse = np.zeros((B, splits, H, R)), np.full((B, splits, H), -np.inf)
    size = -(-T // splits)
    for b in range(B):
        for k in range(splits):
            part = indices[b, k * size : (k + 1) * size]
            partial[b, k], lse[b, k] = attention(q[b], rows[part[part >= 0]], R, scale)
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
