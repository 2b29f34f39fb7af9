# SPDX-License-Identifier: Apache-2.0
"""Times decode and sparse_decode with combine beside what one writes in torch.

    python examples/mla_decode/bench.py [--device cuda] [--rounds 20] [--write]

Every side is checked against float64 before it is timed; all take turns. torch's sides read pages as anyop does
("gather"), or have a copy of each sequence in one piece ("plain", "sdpa"), which a paged cache has not. Bytes are those
of the cache's tokens once, FLOP those of both products. --write adds a line for each side to
bench/results/mla_decode.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyop
import torch
from torch.nn.functional import scaled_dot_product_attention

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))
from harness import device_turns, environment, take_turns, write  # noqa: E402

R, W, S, SCALE = 512, 576, 64, 192**-0.5
LIMITS = {"float32": 2e-5, "bfloat16": 2e-2}


@dataclass
class Case:
    """B sequences of T tokens each; sparse: T chosen ones of four times as many."""

    name: str
    B: int
    H: int
    T: int
    sparse: bool = False


CASES = {
    "cuda": [
        Case("all heads", 64, 128, 4096), Case("a shard's heads", 64, 16, 4096), Case("one sequence", 1, 16, 32768),
        Case("sparse", 64, 128, 2048, True),
    ],
    "cpu": [Case("a shard's heads", 2, 16, 1024), Case("sparse", 2, 16, 256, True)],
}  # fmt: skip


class Inputs:
    """Queries, a paged cache, and which of its tokens are attended to."""

    def __init__(self, case: Case, dtype: torch.dtype, device: str) -> None:
        random = torch.Generator(device).manual_seed(0)
        M = case.T // S * (4 if case.sparse else 1)
        N = case.B * M
        self.q = torch.randn(case.B, case.H, W, generator=random, device=device).to(dtype)
        self.cache = torch.randn(N, S, W, generator=random, device=device).to(dtype)
        self.pages = torch.randperm(N, generator=random, device=device).reshape(case.B, M)
        chosen = torch.randint(0, N * S, (case.B, case.T), generator=random, device=device)
        places = torch.arange(S, device=device)
        paged = (self.pages[..., None] * S + places).reshape(case.B, -1)
        self.tokens = chosen if case.sparse else paged  # rows of the cache
        self.small = (self.pages.int(), self.tokens.int())
        self.lengths = torch.full((case.B,), case.T, dtype=torch.int32, device=device)

    def gathered(self) -> torch.Tensor:
        return self.cache.view(-1, W)[self.tokens]


def splits_for(case: Case, device: str) -> int:
    """Enough blocks for the device, none of fewer than 128 tokens."""
    if device == "cpu":
        return 1
    blocks = case.B * -(-case.H // (16 if case.H <= 16 else 32))
    wanted = -(-4 * torch.cuda.get_device_properties(0).multi_processor_count // blocks)
    return max(1, min(wanted, case.T // 128))


def attention(q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, tokens.transpose(1, 2)) * SCALE
    return torch.matmul(torch.softmax(scores, -1), tokens[..., :R])


def sides(case: Case, inputs: Inputs, splits: int) -> dict[str, Callable]:
    """What is compared: functions that return (B, H, R) in the dtype of q."""
    mla, q, dtype = anyop.ops.mla, inputs.q, inputs.q.dtype
    plain = inputs.gathered()
    keys, values = plain[:, None], plain[:, None, :, :R]

    def own():
        if case.sparse:
            parts = mla.sparse_decode(q, inputs.cache, inputs.small[1], R, SCALE, splits)
        else:
            parts = mla.decode(q, inputs.cache, inputs.small[0], inputs.lengths, R, SCALE, splits)
        return mla.combine(*parts, dtype=dtype)[0]

    return {
        "anyop": own,
        "torch gather": lambda: attention(q, inputs.gathered()),
        "torch plain": lambda: attention(q, plain),
        "torch sdpa": lambda: scaled_dot_product_attention(q[:, None], keys, values, scale=SCALE)[
            :, 0
        ],
    }


def check(name: str, found: torch.Tensor, inputs: Inputs) -> None:
    tokens = inputs.cache.view(-1, W)[inputs.tokens[:2]].double()
    error = (found[:2].double() - attention(inputs.q[:2].double(), tokens)).abs().max().item()
    # torch keeps scores and weights in the dtype of q.
    limit = LIMITS[str(found.dtype).removeprefix("torch.")] * (1 if name == "anyop" else 3)
    if not error <= limit:
        raise SystemExit(f"{name}: error {error:.1e}, limit {limit:.1e}")


def measure(case: Case, dtype: str, device: str, rounds: int):
    inputs = Inputs(case, getattr(torch, dtype), device)
    splits = splits_for(case, device)
    by = sides(case, inputs, splits)
    for name, side in by.items():
        check(name, side(), inputs)
    times = device_turns(by, rounds, 5) if device == "cuda" else take_turns(by, rounds)
    own, tokens = statistics.median(times["anyop"]), case.B * case.T
    for name, each in times.items():
        median = statistics.median(each)
        yield {
            "case": case.name, "B": case.B, "H": case.H, "T": case.T, "splits": splits, "dtype": dtype,
            "device": device, "side": name, "min_us": round(min(each) / 1e3, 1), "median_us": round(median / 1e3, 1),
            "ratio": round(median / own, 2), "gb_per_s": round(tokens * W * inputs.q.element_size() / median, 2),
            "gflop_per_s": round(2 * tokens * case.H * (W + R) / median, 1),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="add to bench/results")
    options = parser.parse_args()
    backends = ["cpu", "cuda"] if options.device == "cuda" else ["cpu"]
    with tempfile.TemporaryDirectory() as folder:
        anyop.load(anyop.build(HERE / "ops", out=folder, name="mla", backends=backends))
    where = environment(anyop, torch)
    if options.device == "cuda":
        where["gpu"] = torch.cuda.get_device_name()
    print(
        f"{'case':16}{'dtype':9}{'side':14}{'min us':>10}{'median us':>11}{'/ anyop':>9}{'GB/s':>9}{'GFLOP/s':>11}"
    )
    results = []
    for case in CASES[options.device]:
        for dtype in ("bfloat16", "float32"):
            for row in measure(case, dtype, options.device, options.rounds):
                print(
                    f"{row['case']:16}{dtype:9}{row['side']:14}{row['min_us']:10.1f}{row['median_us']:11.1f}"
                    f"{row['ratio']:9.2f}{row['gb_per_s']:9.2f}{row['gflop_per_s']:11.1f}"
                )
                results.append(row)
    if options.write:
        print("written to", write("mla_decode", results, where))


if __name__ == "__main__":
    main()
