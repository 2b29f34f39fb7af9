# SPDX-License-Identifier: Apache-2.0
"""Times what anyop's own product kernels choose by default against the best of their choices, on drawn shapes.

    python bench/gpu/cuda_choices.py [--shapes 200] [--seed 0] [--only linear_w8a8,linear_gated,...] [--rounds 12]
    python bench/gpu/cuda_choices.py --shapes 60 --only fused_moe

M is drawn from 1 to 8,192 and N and K from 256 to 28,672, all by their logarithms; N and K are multiples of 16, of
128 with scales of blocks. Of `fused_moe` as many tokens are drawn, 8 to 256 experts, 1 to 8 of a token, H of 512 to
8,192 and I of 256 to 4,096. The default is `cuda_sm90` by itself; its choices are the tiles and clusters of 1, 2, 4, 8
blocks for few rows (docs/products.md). Each side is a CUDA graph, its result compared with the default's; all sides
take turns as in cuda_rows.py. One line of JSON for each shape goes to bench/results/cuda_choices.jsonl.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_rows import FLUSH_BYTES, capture, device, replay_in_turns
from harness import environment, write
from product_cases import FP8, Maker

try:
    import torch
except ImportError:
    torch = None

OPERATORS = ("linear_w8a8", "linear_gated", "linear_fp8_block")
CHOICES = 5
MOST_FLOPS, MOST_BYTES = 2e12, 8e9
FIGURES = {"median": 0.01, "worst": 0.05}  # that the default may be behind


def draw(random_: random.Random, multiple: int) -> tuple[int, int, int]:
    """M, N, K of a product that takes some milliseconds at most."""

    def between(low: int, high: int, step: int) -> int:
        drawn = math.exp(random_.uniform(math.log(low), math.log(high)))
        return max(1, round(drawn / step)) * step

    while True:
        m, n, k = between(1, 8192, 1), between(256, 28672, multiple), between(256, 28672, multiple)
        if 2 * m * n * k <= MOST_FLOPS:
            return m, n, k


def draw_experts(random_: random.Random) -> tuple[int, int, int, int, int]:
    """Tokens, experts, of a token, H, I."""
    while True:
        T = round(math.exp(random_.uniform(0, math.log(8192))))
        E, k = random_.choice([8, 16, 32, 60, 64, 128, 256]), random_.randint(1, 8)
        H, inner = 16 * random_.randint(32, 512), 16 * random_.randint(16, 256)
        if 6 * T * k * H * inner <= MOST_FLOPS and 6 * E * H * inner <= MOST_BYTES:
            return T, E, k, H, inner


def call_of(operator: str, maker: Maker, m: int, n: int, k: int) -> Callable:
    anyop = maker.anyop
    if operator == "linear_gated":
        x, w = maker.normal(m, k) * 0.1, maker.normal(2 * n, k) * 0.1
        return partial(anyop.linear_gated, x, w)
    x, w = maker.normal(m, k, dtype=FP8), maker.normal(n, k, dtype=FP8)
    if operator == "linear_w8a8":
        return partial(anyop.linear_w8a8, x, w, maker.scales(m), maker.scales(n))
    scales = maker.scales(k // 128, m).t(), maker.scales(n // 128, k // 128)
    return partial(anyop.linear_fp8_block, x, w, *scales)


def experts_call(maker: Maker, T: int, E: int, k: int, H: int, inner: int) -> Callable:
    w13, w2 = maker.normal(E, 2 * inner, H) * 0.03, maker.normal(E, H, inner) * 0.03
    weights, ids = maker.anyop.moe_route(maker.normal(T, E), top_k=k)
    return partial(maker.anyop.fused_moe, maker.normal(T, H), w13, w2, weights, ids)


def measure(call: Callable, anyop: Any, rounds: int, flush: Any) -> dict[str, float]:
    """The median of each side in microseconds; a choice that a product is too small for runs as the default does."""
    graphs, expected = {}, None
    for side in ("cuda_sm90", *(f"cuda_sm90:{i}" for i in range(CHOICES))):
        with anyop.use(side):
            graph, out = capture(call)
        graph.replay()
        if expected is None:
            expected = out.double()
        # Sums of 8-bit floats have 14 bits, and where K is divided they differ by that.
        error = (out.double() - expected).abs().max() / expected.square().mean().sqrt()
        if not error <= 0.2:
            raise SystemExit(f"{side}: its result differs by {error:.1e}")
        graphs[side] = graph
    # In both orders: whose code another's kernel has just pushed out of the caches is slower.
    turns = replay_in_turns(graphs, rounds, flush)
    back = replay_in_turns(dict(reversed(graphs.items())), rounds, flush)
    return {side: statistics.median(times + back[side]) for side, times in turns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(OPERATORS), metavar="OP,OP")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return
    import anyop
    import anyop.torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    random_, maker, rows = random.Random(options.seed), Maker(anyop), []
    operators = options.only.split(",")
    for i in range(options.shapes):
        operator = operators[i % len(operators)]
        if operator == "fused_moe":
            sizes = draw_experts(random_)
            call = experts_call(maker, *sizes)
        else:
            sizes = draw(random_, 128 if operator == "linear_fp8_block" else 16)
            call = call_of(operator, maker, *sizes)
        times = measure(call, anyop, options.rounds, flush)
        default = times.pop("cuda_sm90")
        best = min(times, key=lambda side: times[side])
        behind = max(0, default / times[best] - 1)
        rows.append({
            "case": operator, "shape": "x".join(map(str, sizes)), "default_us": round(default, 2), "best": best,
            "best_us": round(times[best], 2), "behind": round(behind, 4),
            "choices_us": {side: round(time, 2) for side, time in times.items()},
        })  # fmt: skip
        print(f"{operator:18}{rows[-1]['shape']:>18}{default:9.2f}{times[best]:9.2f} {best} {behind:6.1%}",
              flush=True)  # fmt: skip
    behind = [row["behind"] for row in rows]
    found = {"median": statistics.median(behind), "worst": max(behind)}
    for name, limit in FIGURES.items():
        verdict = "met" if found[name] <= limit else "MISSED"
        print(f"{name}: {found[name]:.1%} behind, {verdict} {limit:.0%}")
    print(sum(b > 0.05 for b in behind), "of", len(behind), "more than 5 % behind")
    print("written to", write("cuda_choices", rows, environment(anyop, torch) | device()))


if __name__ == "__main__":
    sys.exit(main())
