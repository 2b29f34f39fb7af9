# SPDX-License-Identifier: Apache-2.0
"""What the tests of rotary embeddings compare with, in NumPy: the rotation, back too, and angles."""

import numpy as np


def rows_of(tokens, positions, cu_seqlens):
    """The row of the table for each token of (*X, S); -1 for padding."""
    if positions is not None:
        return np.broadcast_to(positions, tokens)
    rows = np.arange(tokens[-1])
    if cu_seqlens is not None:
        rows = np.full(tokens[-1], -1)
        for begin, end in zip(cu_seqlens[:-1], cu_seqlens[1:]):
            rows[begin:end] = np.arange(end - begin)
    return np.broadcast_to(rows, tokens)


def partners(R, interleaved):
    """Of each element the other of its pair, and the sign of the sine."""
    at = np.arange(R)
    if interleaved:
        return at ^ 1, np.where(at % 2, 1.0, -1.0)
    return (at + R // 2) % max(R, 1), np.where(at >= R // 2, 1.0, -1.0)


def angles(rows, R, seed=0):
    """Cosines and sines of any angles: the two of a pair need not be the same."""
    found = np.random.default_rng(seed).uniform(-9, 9, (rows, R)).astype(np.float32)
    return np.cos(found), np.sin(found)


def rotated(x, cos, sin, positions, cu_seqlens, interleaved, back=False):
    """Rope by its formula, or its transpose."""
    R, rows = cos.shape[1], rows_of(x.shape[:-2], positions, cu_seqlens)
    other, sign = partners(R, interleaved)
    signed = (sin[rows] * sign)[..., None, :]
    out, turned = x.copy(), x[..., :R]
    with np.errstate(all="ignore"):
        cross = (turned * signed)[..., other] if back else turned[..., other] * signed
        found = turned * cos[rows][..., None, :] + cross
    out[..., :R] = np.where((rows >= 0)[..., None, None], found, turned)
    return out
