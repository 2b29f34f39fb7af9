# SPDX-License-Identifier: Apache-2.0
"""The encoder of model.py on tensors of any framework: the same operators, eager or compiled.

Sizes: B texts, T tokens, H heads, D features, M features in the middle of the feed-forward part.
Results are new tensors, as is usual in these frameworks, so each can take the model as one graph.
"""

from __future__ import annotations

import numpy as np

from .frameworks import Framework
from .model import layer_weights, pair, pooled_tokens
from .weights import ACTIVATIONS, Config


class TensorEncoder:
    """Maps token numbers to one vector of unit length for each text, as Encoder does.

    ops: the module anyop, or an object with the same operators.
    """

    def __init__(self, ops, config: Config, weights: dict[str, np.ndarray], framework: Framework):
        self.ops = ops
        self.config = config
        self.framework = framework
        self._activation, self._activation_arguments = ACTIVATIONS[config.activation]
        self._run = framework.prepared(self._forward, self._read(weights))

    def tensor(self, array: np.ndarray):
        """The array as operators take it here."""
        return self.framework.tensor(array)

    def timed(self, recorder) -> TensorEncoder:
        """Itself, with its calls noted by the recorder as one operator."""
        run = self._run

        def finished(*tensors):  # a framework may return before the values are there
            return self.framework.array(run(*tensors))

        self._run = recorder.timed("model", self.framework.compiler, finished)
        return self

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Vectors (B, D) float32 of ids (B, T) int64; mask (B, T) bool is True where text is."""
        B = len(ids)
        ids, mask = self.framework.padded(ids, mask, self.config.limit)
        inputs = map(self.framework.tensor, (ids, mask, pooled_tokens(self.config, mask)))
        return self.framework.array(self._run(*inputs))[:B]

    def _read(self, weights: dict[str, np.ndarray]) -> dict:
        """All weights as tensors, by their place in the model."""
        tensor = self.framework.tensor
        word, position, kind = (
            weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        layers = [layer_weights(weights, layer) for layer in range(self.config.layers)]
        return {
            "words": tensor(word),
            # Every token has type 0 here, so its vector is added to the positions once and for all.
            "positions": self.ops.add(tensor(position), tensor(kind[:1])),
            "norm": tuple(map(tensor, pair(weights, "embeddings.LayerNorm"))),
            "layers": [{k: tuple(map(tensor, v)) for k, v in _.items()} for _ in layers],
        }

    def _forward(self, weights, ids, mask, pooled):
        ops = self.ops
        B, T = ids.shape
        x = ops.embedding(ids, weights["words"])
        x = ops.add(x, weights["positions"][:T])
        x = ops.layer_norm(x, *weights["norm"], self.config.eps)
        visible = mask.reshape((B, 1, 1, T))
        for layer in weights["layers"]:
            x = self._attend(layer, x, visible)
            x = self._feed_forward(layer, x)
        return ops.l2_normalize(ops.masked_mean(x, pooled))

    def _attend(self, layer, x, visible):
        """norm(x + attention(x))."""
        ops, H = self.ops, self.config.H
        B, T, D = x.shape
        qkv = ops.linear(x, *layer["qkv"]).reshape((B, T, 3, H, D // H))
        heads = self.framework.permute(qkv, 2, 0, 3, 1, 4)
        attended = ops.attention(heads[0], heads[1], heads[2], visible)
        attended = self.framework.permute(attended, 0, 2, 1, 3).reshape((B, T, D))
        attended = ops.linear(attended, *layer["attended"])
        return ops.layer_norm(ops.add(x, attended), *layer["attended_norm"], self.config.eps)

    def _feed_forward(self, layer, x):
        """norm(x + outer(activation(inner(x))))."""
        ops = self.ops
        activation = getattr(ops, self._activation)
        inner = activation(ops.linear(x, *layer["inner"]), **self._activation_arguments)
        outer = ops.linear(inner, *layer["outer"])
        return ops.layer_norm(ops.add(x, outer), *layer["outer_norm"], self.config.eps)
