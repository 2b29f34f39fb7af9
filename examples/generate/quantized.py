# SPDX-License-Identifier: Apache-2.0
"""Weights of layers in fp8 or 4 bits, made when they are loaded, and what that costs: perplexity."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import anyop
import numpy as np

from . import InputError
from .checkpoint import Tensor
from .engine import Engine, padded
from .frameworks import NumPy, widened
from .model import GROUP, PAGE, scored

MATRICES = ("qkv", "out", "gate_up", "down", "w13", "w2")  # norms, router, embedding, head stay
KINDS = ("fp8", "w4")


def quantized(framework: NumPy, tensors: list[Tensor], kind: str) -> dict[str, Any]:
    """A matrix (N, K) as model.product takes it."""
    if kind == "fp8":
        try:
            values, scale = anyop.quant_fp8(framework.weight(tensors))  # a scale for each row
        except TypeError as error:  # NumPy has such numbers by ml_dtypes
            raise InputError(f"--quantize fp8: {error}") from None
        return {"fp8": values, "scale": scale.reshape(-1)}
    bits, scale = four_bits(np.concatenate([widened(tensor) for tensor in tensors]))
    packed, _ = anyop.w4_pack(framework.array(bits), None, "plain")
    return {"w4": packed, "scale": framework.array(scale)}


def four_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0 to 15 for -8 to 7 times a scale, two in a byte, low bits first; scales (groups of columns, N)."""
    N, K = matrix.shape
    wide = np.pad(matrix, ((0, 0), (0, -K % GROUP))).reshape(N, -1, GROUP)
    scale = np.maximum(np.abs(wide).max(-1), 1e-10) / 7
    numbers = np.clip(np.rint(wide / scale[..., None]) + 8, 0, 15).astype(np.uint8)
    numbers = numbers.reshape(N, -1)[:, :K]
    return numbers[:, ::2] | numbers[:, 1::2] << 4, np.ascontiguousarray(scale.T)


def perplexity(engine: Engine, tokens: list[int]) -> float:
    """Of a text's tokens, each behind those before it; of as many as one sequence of the engine has room for."""
    framework, tokens = engine.framework, tokens[: min(engine.M * PAGE, engine.room) + 1]
    T = len(tokens) - 1
    places = np.arange(T, dtype=np.int32)
    step = {
        "tokens": padded(tokens[:-1], T), "positions": places, "slots": places,
        "table": np.arange(engine.M, dtype=np.int32)[None],
        "lengths": padded([T], 1), "starts": padded([0, T], 2),
        "targets": padded(tokens[1:], T) + places * np.int32(engine.config.V),
    }  # fmt: skip
    made = {name: framework.array(array) for name, array in step.items()}
    run = framework.compiled(partial(scored, framework.xp, engine.config))
    engine.caches, logs = run(engine.weights, engine.caches, made)
    return math.exp(-sum(framework.read(logs)) / T)
