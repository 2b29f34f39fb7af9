# SPDX-License-Identifier: Apache-2.0
"""A BERT encoder whose every heavy step is one anyop operator on NumPy arrays, here or on a device.

Sizes: B texts, T tokens, H heads, D features, M features in the middle of the feed-forward part,
N = B*T.
All large results go into memory that lives as long as the model: fresh pages cost more than most
operators here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .frameworks import Framework
from .weights import ACTIVATIONS, Config


class Views(NamedTuple):
    """Parts of the model's memory for one batch. What is not used at the same time overlaps."""

    x: np.ndarray  # (N, D): the vectors of all tokens, from layer to layer
    other: np.ndarray  # (N, D)
    qkv: np.ndarray  # (N, 3*D)
    heads: tuple  # (B, H, T, D/H) of queries, keys and values, in qkv; of results, in other
    projected: np.ndarray  # (N, D), over qkv
    inner: np.ndarray  # (N, M), over qkv


class Layer(NamedTuple):
    """Weights of one layer, with query, key and value as one matrix."""

    qkv: tuple[np.ndarray, np.ndarray]
    attended: tuple[np.ndarray, np.ndarray]
    attended_norm: tuple[np.ndarray, np.ndarray]
    inner: tuple[np.ndarray, np.ndarray]
    outer: tuple[np.ndarray, np.ndarray]
    outer_norm: tuple[np.ndarray, np.ndarray]


class Encoder:
    """Maps token numbers to one vector of unit length for each text.

    ops: the module anyop, or an object with the same operators.
    framework: NumPy, or NumPy with memory of a device.
    """

    def __init__(
        self,
        ops,
        config: Config,
        weights: dict[str, np.ndarray],
        framework: Framework | None = None,
    ):
        self.ops = ops
        self.config = config
        self.framework = framework or Framework()
        self._words = self.tensor(weights["embeddings.word_embeddings.weight"])
        # Every token has type 0 here, so its vector is added to the positions once and for all.
        positions = weights["embeddings.position_embeddings.weight"]
        self._positions = ops.add(
            self.tensor(positions),
            self.tensor(weights["embeddings.token_type_embeddings.weight"][:1]),
            **self.framework.out((positions.shape, np.float32)),
        )
        self._norm = self._tensors(pair(weights, "embeddings.LayerNorm"))
        parts = [layer_weights(weights, layer) for layer in range(config.layers)]
        self._layers = [Layer(**{k: self._tensors(v) for k, v in _.items()}) for _ in parts]
        self._activation, self._activation_arguments = ACTIVATIONS[config.activation]
        self._memory = self.framework.empty(1)

    def tensor(self, array: np.ndarray):
        """The array as operators take it here."""
        return self.framework.tensor(array)

    def _tensors(self, arrays) -> tuple:
        return tuple(map(self.tensor, arrays))

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Vectors (B, D) float32 of ids (B, T) int64; mask (B, T) bool is True where text is."""
        B, T = ids.shape
        ops = self.ops
        views = self._views(B, T)
        x = views.x
        tokens = x.reshape(B, T, -1)
        ops.embedding(self.tensor(ids), self._words, out=tokens)
        ops.add(tokens, self._positions[:T], out=tokens)
        ops.layer_norm(x, *self._norm, self.config.eps, out=x)
        visible = None if mask.all() else self.tensor(mask[:, None, None, :])
        for layer in self._layers:
            self._attend(layer, visible, views)
            self._feed_forward(layer, views)
        kind = (B, self.config.D), np.float32
        chosen = self.tensor(pooled_tokens(self.config, mask))
        pooled = ops.masked_mean(tokens, chosen, **self.framework.out(kind))
        return self.framework.array(ops.l2_normalize(pooled, out=pooled))

    def _attend(self, layer: Layer, visible: np.ndarray | None, views: Views) -> None:
        """Turn x into norm(x + attention(x))."""
        ops = self.ops
        x, other, qkv, (*heads, attended), projected, _ = views
        ops.linear(x, *layer.qkv, out=qkv)
        ops.attention(*heads, visible, out=attended)
        ops.linear(other, *layer.attended, out=projected)
        ops.add(x, projected, out=x)
        ops.layer_norm(x, *layer.attended_norm, self.config.eps, out=x)

    def _feed_forward(self, layer: Layer, views: Views) -> None:
        """Turn x into norm(x + outer(activation(inner(x))))."""
        ops = self.ops
        x, other, inner = views.x, views.other, views.inner
        ops.linear(x, *layer.inner, out=inner)
        getattr(ops, self._activation)(inner, **self._activation_arguments, out=inner)
        ops.linear(inner, *layer.outer, out=other)
        ops.add(x, other, out=x)
        ops.layer_norm(x, *layer.outer_norm, self.config.eps, out=x)

    def _views(self, B: int, T: int) -> Views:
        D, H, M, N = self.config.D, self.config.H, self.config.M, B * T
        size = N * (2 * D + max(3 * D, M))
        if len(self._memory) < size:
            self._memory = self.framework.empty(size)

        def view(begin: int, width: int) -> np.ndarray:
            return self._memory[begin : begin + N * width].reshape(N, width)

        other, qkv = view(N * D, D), view(2 * N * D, 3 * D)
        # (B, T, H, D/H) seen as (B, H, T, D/H): heads are views, nothing is copied.
        q, k, v = qkv.reshape(B, T, 3, H, -1).transpose(2, 0, 3, 1, 4)
        attended = other.reshape(B, T, H, -1).transpose(0, 2, 1, 3)
        return Views(
            x=view(0, D),
            other=other,
            qkv=qkv,
            heads=(q, k, v, attended),
            projected=view(2 * N * D, D),
            inner=view(2 * N * D, M),
        )


def pair(weights: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def layer_weights(weights: dict[str, np.ndarray], layer: int) -> dict:
    """Weight and bias of each part of one layer, with query, key and value as one matrix."""
    prefix = f"encoder.layer.{layer}."
    qkv = [pair(weights, f"{prefix}attention.self.{part}") for part in ("query", "key", "value")]
    return {
        "qkv": tuple(map(np.concatenate, zip(*qkv, strict=True))),
        "attended": pair(weights, prefix + "attention.output.dense"),
        "attended_norm": pair(weights, prefix + "attention.output.LayerNorm"),
        "inner": pair(weights, prefix + "intermediate.dense"),
        "outer": pair(weights, prefix + "output.dense"),
        "outer_norm": pair(weights, prefix + "output.LayerNorm"),
    }


def pooled_tokens(config: Config, mask: np.ndarray) -> np.ndarray:
    """Which tokens' vectors are averaged: all of the text, or only the first."""
    if config.pooling == "mean":
        return mask
    first = np.zeros_like(mask)
    first[:, 0] = True
    return first
