# SPDX-License-Identifier: Apache-2.0
"""Times the layers of a decoding step on CUDA: each as one operator, decoder_layer, and as those it stands for.

    python bench/gpu/cuda_decoder_layer.py [--models 0.6b,8b] [--rows 1,2,4,8] [--context 1024] [--rounds 15]

All layers of a model, with random bfloat16 weights of their own, are captured into a graph for each side, as
examples/generate runs them. Sides take turns after the second cache was filled with other bytes; before that what they
give is compared. Bytes are those of weights, keys and values, once; the ceiling is that of a + b -> c in the same run.
One line of JSON for each side goes to bench/results/cuda_decoder_layer.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import numpy as np
import torch
from cuda_products import paced_turns
from cuda_rows import FLUSH_BYTES, capture, ceiling, device
from generate import SIZES
from harness import environment, write

from examples.generate.config import Config, Layer, rope_table
from examples.generate.families import HEADS, LLAMA
from examples.generate.model import PAGE, forward

FAR = 0.1  # of results, in a share of their greatest: 12 layers on the CPU are 0.017 apart, for each rounds to 8 bits


def config_of(size: str) -> Config:
    D, F, layers, H, G, HD, V = SIZES[size]
    positions = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 1.0}
    return Config(family="qwen3", V=V, D=D, F=F, H=H, G=G, HD=HD, L=layers, limit=40960, eps=1e-6, scale=HD**-0.5,
                  layers=(Layer("full", 0),) * layers, rope={"full": positions}, tied=True,
                  weights=LLAMA | HEADS)  # fmt: skip


def drawn(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * shape[-1] ** -0.5).bfloat16()


def inputs_of(config: Config, rows: int, context: int) -> tuple[dict, list, dict]:
    D, F, H, G, HD = config.D, config.F, config.H, config.G, config.HD
    ones = {n: torch.ones(w, device="cuda", dtype=torch.bfloat16)
            for n, w in (("attention_norm", D), ("ffn_norm", D), ("q_norm", HD), ("k_norm", HD))}  # fmt: skip
    table = rope_table(config, "full", context)
    weights = {
        "embed": drawn(1000, D) * D**0.5,
        "norm": ones["ffn_norm"],
        "rope": {"full": tuple(torch.from_numpy(x).cuda() for x in table)},
        "layers": [
            ones
            | {"qkv": drawn((H + 2 * G) * HD, D), "out": drawn(D, H * HD)}
            | {"gate_up": drawn(2 * F, D), "down": drawn(D, F)}
            for _ in config.layers
        ],
    }
    M = -(-context // PAGE)
    shape = rows * M, PAGE, G, HD
    caches = [
        tuple(torch.randn(shape, device="cuda").bfloat16() for _ in range(2)) for _ in config.layers
    ]
    pages = np.random.default_rng(0).permutation(rows * M).reshape(rows, M).astype(np.int32)
    last = pages[:, (context - 1) // PAGE] * PAGE + (context - 1) % PAGE
    step = {"tokens": np.arange(rows), "positions": np.full(rows, context - 1), "slots": last, "table": pages,
            "lengths": np.full(rows, context)}  # fmt: skip
    return (
        weights,
        caches,
        {k: torch.from_numpy(v.astype(np.int32)).cuda() for k, v in step.items()},
    )


def measure(size: str, rows: int, options: argparse.Namespace, flush, limit: float) -> list[dict]:
    config = config_of(size)
    weights, caches, step = inputs_of(config, rows, options.context)
    sides = {"operators": config, "decoder_layer": replace(config, whole_layers=True)}
    graphs, results = {}, {}
    for side, of in sides.items():
        graphs[side], (_, results[side]) = capture(lambda of=of: forward(of, weights, caches, step))
    for graph in graphs.values():
        graph.replay()
    one, other = (x.float() for x in results.values())
    apart = ((one - other).abs().max() / one.abs().max()).item()
    if not apart < FAR:
        raise SystemExit(f"{size}, {rows} rows: results are {apart:.3f} apart, nothing was timed")
    parts = [x for layer in weights["layers"] for x in layer.values()] + [
        x for c in caches for x in c
    ]
    moved, found = sum(x.numel() * x.element_size() for x in parts), []
    for side, us in paced_turns(graphs, options.rounds, flush).items():
        row = {"model": size, "rows": rows, "context": options.context, "side": side}
        row |= {"layer_us": round(us / len(config.layers), 3), "all_us": round(us, 2)}
        row |= {
            "bytes": moved,
            "of_ceiling": round(moved / us / limit, 3),
            "apart": round(apart, 5),
        }
        found.append(row)
        print(f"{size:5} {rows} x {options.context:5} {side:14} {row['layer_us']:7.2f} us a layer, {us:8.1f} in all, "
              f"{row['of_ceiling']:.0%} of the ceiling")  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="0.6b,8b", help="of " + ",".join(SIZES))
    parser.add_argument("--rows", default="1,2,4,8")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    torch.manual_seed(0)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, found = ceiling(options.rounds, flush), []
    for size in options.models.split(","):
        for rows in map(int, options.rows.split(",")):
            found += measure(size, rows, options, flush, limit)
    if not options.dry:
        write("cuda_decoder_layer", found, environment(anyop, np, torch) | device())


if __name__ == "__main__":
    main()
