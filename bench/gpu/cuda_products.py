# SPDX-License-Identifier: Apache-2.0
"""Times matrix products and convolutions on CUDA against torch's, in TFLOP/s and as shares of the bytes' ceiling.

    python bench/gpu/cuda_products.py [--only linear,linear_w8a8] [--rounds 15] [--implementations cuda_sm90,cuda_tiles]

Each side is captured into a CUDA graph, checked against float64 in its first rows, and run twice for the same bits;
then all sides take turns, each after 20 ms of idling (so that the clocks are the same) with the second cache filled
with other bytes. A product of many rows is judged by its TFLOP/s, one of few by the bytes that it must read and
write, over its time without an empty kernel's where that is under 60 us. One line of JSON for each side goes to
bench/results/cuda_products.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_rows import FLUSH_BYTES, SHORT_US, capture, ceiling, device, left_out
from harness import environment, write
from product_cases import OPERATORS, Maker, Product

try:
    import torch
except ImportError:
    torch = None

WRONG: list[str] = []


def is_right(product: Product, side: str, out: Any, twice: Any) -> bool:
    exact = product.exact()
    if "alone" in side:  # another result
        return True
    found = out[: len(exact)].double()
    beyond = (found - exact).abs() - exact.abs() * 2**-8  # a result's own rounding, twice
    worst = (beyond.max() / exact.square().mean().sqrt()).item()
    problem = "" if worst <= product.limit else f"error {worst:.1e}, limit {product.limit:.1e}"
    if not problem and side.startswith("anyop") and not torch.equal(out, twice):
        problem = "other bits the second time"
    if problem:
        text = f"{product.operator} {product.shape} {product.dtype} by {side}: {problem}"
        print("WRONG:", text, flush=True)
        WRONG.append(text)
    return not problem


def paced_turns(graphs: dict[str, Any], rounds: int, flush: Any) -> dict[str, float]:
    """The median in microseconds of each side's replays."""
    pairs: dict[str, list] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            time.sleep(0.02)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(4):  # the CPU is ahead of the device again
                flush.zero_()
            begin.record()
            graph.replay()
            end.record()
            pairs[name].append((begin, end))
    torch.cuda.synchronize()
    return {n: statistics.median(b.elapsed_time(e) * 1e3 for b, e in p) for n, p in pairs.items()}


def sides_of(
    product: Product, anyop: Any, implementations: list[str]
) -> Iterator[tuple[str, Callable, Any]]:
    yield "anyop", product.call, contextlib.nullcontext()
    for name in implementations:
        if name in anyop.backends(product.operator):
            yield f"anyop {name}", product.call, anyop.use(name)
    for name, call in product.peers.items():
        yield name, call, contextlib.nullcontext()


def measure(
    product: Product, anyop: Any, options: argparse.Namespace, flush, limit, idle_us
) -> Iterator[dict]:
    graphs = {}
    for side, call, context in sides_of(product, anyop, options.implementations.split(",")):
        with left_out(side, product), context:
            graph, out = capture(call)
            graph.replay()
            first = out.clone()
            graph.replay()
            if is_right(product, side, first, out):
                graphs[side] = graph
    times = paced_turns(graphs, options.rounds, flush)
    best = min((t for side, t in times.items() if not side.startswith("anyop")), default=None)
    for side, median in times.items():
        busy = median - idle_us if median < SHORT_US else median
        yield {
            "case": product.operator, "shape": product.shape, "dtype": product.dtype, "side": side,
            "median_us": round(median, 2), "tflops": round(product.flops / median / 1e6, 1),
            "share_of_ceiling": round(product.bytes / busy / limit, 3),
            "of_best_peer": round(best / median, 3) if best else None,
        }  # fmt: skip


def show(row: dict, is_thin: bool) -> None:
    rate = f"{row['share_of_ceiling']:8.1%}" if is_thin else f"{row['tflops']:6.0f} TF"
    beside = f"{row['of_best_peer']:8.3f}" if row["of_best_peer"] else ""
    print(f"{row['case']:18}{row['shape']:>38} {row['dtype']:14}{row['side']:22}{row['median_us']:10.2f}{rate}{beside}",
          flush=True)  # fmt: skip


def main() -> str | None:
    """What was wrong, if something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(OPERATORS), metavar="OP,OP")
    parser.add_argument("--implementations", default="cuda,cuda_sm90,cuda_tiles,cuda_tiles_sm90")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return None
    import anyop
    import anyop.torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, one = ceiling(options.rounds, flush), torch.zeros(1, device="cuda")
    idle_us = paced_turns({"": capture(lambda: one.add_(0))[0]}, options.rounds, flush)[""]
    print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
    rows = []
    maker = Maker(anyop)
    for name in options.only.split(","):
        if not hasattr(anyop, name):
            print(f"left out: {name}: no such operator")
            continue
        for product in getattr(maker, name)():
            for row in measure(product, anyop, options, flush, limit, idle_us):
                show(row, product.is_thin)
                rows.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
    where = environment(anyop, torch) | device() | {"idle_us": round(idle_us, 2)}
    print("written to", write("cuda_products", rows, where))
    return "; ".join(WRONG) or None


if __name__ == "__main__":
    sys.exit(main())
