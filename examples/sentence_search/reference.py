# SPDX-License-Identifier: Apache-2.0
"""The same encoder in float64 NumPy, without anyop: what the operators' results are measured by.

One text at a time, so nothing is padded. Sizes: T tokens, H heads, D features.
"""

from __future__ import annotations

import math

import numpy as np

from .model import layer_weights, pair
from .weights import Config

erf = np.vectorize(math.erf, otypes=[np.float64])


def reference(config: Config, weights: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """The vector (D,) float64 of one text's token numbers (T,)."""
    weights = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x, pair(weights, "embeddings.LayerNorm"), config.eps)
    for number in range(config.layers):
        layer = layer_weights(weights, number)
        attended = _dense(_attention(_dense(x, layer["qkv"]), config.H), layer["attended"])
        x = _norm(x + attended, layer["attended_norm"], config.eps)
        inner = _activation(config.activation, _dense(x, layer["inner"]))
        x = _norm(x + _dense(inner, layer["outer"]), layer["outer_norm"], config.eps)
    pooled = x.mean(axis=0) if config.pooling == "mean" else x[0]
    return pooled / np.linalg.norm(pooled)


def _dense(x: np.ndarray, layer: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return x @ layer[0].T + layer[1]


def _norm(x: np.ndarray, layer: tuple[np.ndarray, np.ndarray], eps: float) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * layer[0] + layer[1]


def _attention(qkv: np.ndarray, H: int) -> np.ndarray:
    """Rows (T, D) of rows (T, 3*D): each head looks at all tokens."""
    T = len(qkv)
    q, k, v = qkv.reshape(T, 3, H, -1).transpose(1, 2, 0, 3)
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2).reshape(T, -1)


def _activation(name: str, x: np.ndarray) -> np.ndarray:
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x / 2 * (1 + erf(x / math.sqrt(2)))
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
