# SPDX-License-Identifier: Apache-2.0
"""The encoder of model.py on torch tensors: the same operators, eager or under torch.compile.

Sizes: B texts, T tokens, H heads, D features, M features in the middle of the feed-forward part.
Results are new tensors, as is usual in torch, so torch.compile takes the whole model as one graph.
"""

from __future__ import annotations

import sys

import numpy as np

from . import InputError
from .weights import ACTIVATIONS, Config


def working_torch():
    """The module torch, with anyop's operators known to it."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(f"torch is not installed: {sys.executable} -m pip install torch") from None
    try:
        import anyop.torch  # noqa: F401
    except ImportError as error:
        raise InputError(str(error).splitlines()[0]) from None
    return torch


class TorchEncoder:
    """Maps token numbers to one vector of unit length for each text, as Encoder does.

    ops: the module anyop, or an object with the same operators. compiled: run as one compiled graph.
    """

    def __init__(self, ops, config: Config, weights: dict[str, np.ndarray], compiled: bool = False):
        self._torch = working_torch()
        self.ops = ops
        self.config = config
        self._weights = {name: self.tensor(array) for name, array in weights.items()}
        # Every token has type 0 here, so its vector is added to the positions once and for all.
        self._positions = ops.add(
            self._weights["embeddings.position_embeddings.weight"],
            self._weights["embeddings.token_type_embeddings.weight"][:1],
        )
        self._layers = [self._layer(layer) for layer in range(config.layers)]
        self._activation, self._activation_arguments = ACTIVATIONS[config.activation]
        self._forward = self.forward
        self._compiled = compiled
        if compiled:
            self._forward = self._torch.compile(self.forward, fullgraph=True, dynamic=True)

    def tensor(self, array: np.ndarray):
        """The array's memory as a tensor."""
        return self._torch.from_numpy(array)

    def timed(self, recorder) -> TorchEncoder:
        """Itself, with its calls noted by the recorder as one operator."""
        self._forward = recorder.timed("model", "inductor", self._forward)
        return self

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Vectors (B, D) float32 of ids (B, T) int64; mask (B, T) bool is True where text is."""
        B = len(ids)
        if B == 1 and self._compiled:  # torch.compile makes a size of 1 a graph of its own
            ids, mask = ids.repeat(2, 0), mask.repeat(2, 0)
        try:
            return self._forward(self.tensor(ids), self.tensor(mask)).numpy()[:B]
        except self._torch._dynamo.exc.BackendCompilerFailed as error:  # for example: no compiler
            cause = str(error.inner_exception).strip().splitlines()[0]
            raise InputError(f"torch.compile failed: {cause}") from None

    def forward(self, ids, mask):
        ops, eps = self.ops, self.config.eps
        T = ids.shape[1]
        x = ops.embedding(ids, self._weights["embeddings.word_embeddings.weight"])
        x = ops.add(x, self._positions[:T])
        x = ops.layer_norm(x, *self._pair("embeddings.LayerNorm"), eps)
        visible = mask[:, None, None, :]
        for layer in self._layers:
            x = self._attend(layer, x, visible)
            x = self._feed_forward(layer, x)
        return ops.l2_normalize(ops.masked_mean(x, self._pooled_tokens(mask)))

    def _attend(self, layer, x, visible):
        """norm(x + attention(x))."""
        ops, H = self.ops, self.config.H
        B, T, D = x.shape
        qkv = ops.linear(x, *layer["qkv"]).view(B, T, 3, H, D // H)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        heads = ops.attention(q, k, v, visible).transpose(1, 2).reshape(B, T, D)
        attended = ops.linear(heads, *layer["attended"])
        return ops.layer_norm(ops.add(x, attended), *layer["attended_norm"], self.config.eps)

    def _feed_forward(self, layer, x):
        """norm(x + outer(activation(inner(x))))."""
        ops = self.ops
        activation = getattr(ops, self._activation)
        inner = activation(ops.linear(x, *layer["inner"]), **self._activation_arguments)
        outer = ops.linear(inner, *layer["outer"])
        return ops.layer_norm(ops.add(x, outer), *layer["outer_norm"], self.config.eps)

    def _pooled_tokens(self, mask):
        """Which tokens' vectors are averaged: all of the text, or only the first."""
        if self.config.pooling == "mean":
            return mask
        return self._torch.arange(mask.shape[1]).eq(0).expand_as(mask).contiguous()

    def _pair(self, name: str):
        return self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]

    def _layer(self, layer: int) -> dict:
        """Weights and biases of one layer, with query, key and value as one matrix."""
        prefix = f"encoder.layer.{layer}."
        parts = [self._pair(f"{prefix}attention.self.{part}") for part in ("query", "key", "value")]
        return {
            "qkv": tuple(map(self._torch.cat, zip(*parts, strict=True))),
            "attended": self._pair(prefix + "attention.output.dense"),
            "attended_norm": self._pair(prefix + "attention.output.LayerNorm"),
            "inner": self._pair(prefix + "intermediate.dense"),
            "outer": self._pair(prefix + "output.dense"),
            "outer_norm": self._pair(prefix + "output.LayerNorm"),
        }
