# SPDX-License-Identifier: Apache-2.0
"""Weights of layers in fp8 or 4 bits, made when they are loaded, and what that costs: perplexity."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyop
import numpy as np

from .engine import Engine, padded
from .frameworks import NumPy
from .model import GROUP, scored

MATRICES = ("qkv", "out", "gate_up", "down", "w13", "w2")  # norms, router, embedding, head stay
KINDS = ("fp8", "w4")
ROWS = 64  # of a matrix that a thread makes at once, so that they stay in its cache


def quantized(framework: NumPy, parts: list[np.ndarray], kind: str) -> dict[str, Any]:
    """A matrix (N, K) as model.product takes it."""
    if kind == "fp8":
        values, scale = anyop.quant_fp8(framework.weight(parts))  # a scale for each row
        return {"fp8": values, "scale": scale.reshape(-1)}
    rows = [
        part[n : n + ROWS].astype(np.float32) for part in parts for n in range(0, len(part), ROWS)
    ]
    with ThreadPoolExecutor() as pool:
        bits, scales = zip(*pool.map(four_bits, rows))
    packed, _ = anyop.w4_pack(framework.array(np.concatenate(bits)), None, "plain")
    return {"w4": packed, "scale": framework.array(np.concatenate(scales, 1))}


def four_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0 to 15 for -8 to 7 times a scale, two in a byte, low bits first; scales (groups of columns, N)."""
    N, K = matrix.shape
    wide = np.pad(matrix, ((0, 0), (0, -K % GROUP))).reshape(N, -1, GROUP)
    scale = np.maximum(np.abs(wide).max(-1), 1e-10) / 7
    numbers = np.clip(np.rint(wide / scale[..., None]) + 8, 0, 15).astype(np.uint8)
    numbers = numbers.reshape(N, -1)[:, :K]
    return numbers[:, ::2] | numbers[:, 1::2] << 4, np.ascontiguousarray(scale.T)


def perplexity(engine: Engine, tokens: list[int]) -> float:
    """Of a text's tokens, each behind those before it; one sequence of the engine has room for them."""
    T = len(tokens) - 1
    places = np.arange(T, dtype=np.int32)
    step = {
        "tokens": padded(tokens[:-1], T), "positions": places, "slots": places,
        "table": np.arange(engine.M, dtype=np.int32)[None], "lengths": padded([T], 1),
        "starts": padded([0, T], 2), "targets": padded(tokens[1:], T),
    }  # fmt: skip
    run = engine.framework.compiled(partial(scored, engine.config))
    engine.caches, losses = run(engine.weights, engine.caches, engine.arrays(step))
    return math.exp(sum(losses.tolist()) / T)
