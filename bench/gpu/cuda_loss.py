# SPDX-License-Identifier: Apache-2.0
"""Times linear_cross_entropy on CUDA beside torch's linear and cross_entropy, and says what memory each takes.

    python bench/gpu/cuda_loss.py [--rounds 15] [--only 4096x1024x151936,...] [--dtypes bfloat16,float32]

Each side, forward and with the gradients of x and weight, is captured into a CUDA graph, compared with float64 in its
first rows, and run twice for the same bits. Then all sides take turns, each behind a filled second cache. Memory is
what the device has less of behind one call of a process of its own: the most that its allocators asked for. One line
of JSON for each side goes to bench/results/cuda_loss.jsonl.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_products import paced_turns
from cuda_rows import FLUSH_BYTES, capture, device
from harness import environment, write

try:
    import torch
except ImportError:
    torch = None

SHAPES = ["4096x1024x151936", "8192x4096x128256", "4096x4096x32000", "512x512x32000"]  # T, K, V
SIDES = ["anyop", "torch", "torch.compile"]
CHECKED_ROWS = 16
LIMIT = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-4}  # torch rounds logits to 16 bits


def inputs(shape: str, dtype: str) -> tuple[Any, Any, Any]:
    T, K, V = map(int, shape.split("x"))
    make = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(T, K, device="cuda", generator=make).to(getattr(torch, dtype))
    weight = (torch.randn(V, K, device="cuda", generator=make) / K**0.5).to(x.dtype)
    target = torch.randint(0, V, (T,), device="cuda", generator=make)
    target[::9] = -100
    return x.requires_grad_(), weight.requires_grad_(), target


def theirs(x: Any, weight: Any, target: Any) -> Any:
    logits = torch.nn.functional.linear(x, weight).float()
    return torch.nn.functional.cross_entropy(logits, target)


def loss_of(side: str) -> Callable:
    if side == "torch":
        return theirs
    if side == "torch.compile":
        return torch.compile(theirs)
    import anyop
    import anyop.torch

    def ours(x: Any, weight: Any, target: Any) -> Any:
        return anyop.linear_cross_entropy(x, weight, target)[0].sum() / (target != -100).sum()

    return ours


def calls(side: str, x: Any, weight: Any, target: Any) -> dict[str, Callable]:
    """What is measured; each gives a tuple of tensors."""
    loss = loss_of(side)

    def forward() -> tuple:
        with torch.no_grad():
            return (loss(x, weight, target),)

    def both() -> tuple:
        return torch.autograd.grad(loss(x, weight, target), (x, weight))

    return {"forward": forward, "forward and backward": both}


def exact(x: Any, weight: Any, target: Any) -> tuple[Any, Any]:
    """The loss in float64, and the gradient of the first rows of x."""
    wide, count, total = weight.detach().double(), (target != -100).sum(), 0.0
    for first in range(0, len(x), 512):
        logits = x[first : first + 512].detach().double() @ wide.t()
        part = target[first : first + 512]
        total += torch.nn.functional.cross_entropy(logits, part, reduction="sum").item()
    rows = x[:CHECKED_ROWS].detach().double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        rows @ wide.t(), target[:CHECKED_ROWS], reduction="sum"
    )
    return total / count.item(), torch.autograd.grad(loss / count, rows)[0]


def is_right(what: str, found: tuple, expected: tuple, dtype: str) -> bool:
    limit = LIMIT[dtype]
    if what == "forward":
        return abs(found[0].item() - expected[0]) <= limit * expected[0]
    error = (found[0][:CHECKED_ROWS].double() - expected[1]).norm() / expected[1].norm()
    return error.item() <= limit


def memory(side: str, shape: str, dtype: str, what: str) -> int | None:
    """MiB that a process has taken of the device behind one call; None where it failed."""
    command = [sys.executable, __file__, "--memory-of", side, shape, dtype, what]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        print(f"left out: memory of {side} {shape}: {run.stderr.strip().splitlines()[-1][:120]}")
        return None
    return int(run.stdout.split()[-1])


def print_memory(side: str, shape: str, dtype: str, what: str) -> None:
    """Of this process. anyop's pool keeps what it took, so that it starts with a small call; torch gives it back."""
    x, weight, target = inputs(shape, dtype)
    small = tuple(t[:64].detach().requires_grad_(t.is_floating_point()) for t in (x, weight))
    started = (*small, target[:64] % 64) if side == "anyop" else (x, weight, target)
    calls(side, *started)[what]()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    results = calls(side, x, weight, target)[what]()
    torch.cuda.synchronize()
    print((before - torch.cuda.mem_get_info()[0]) >> 20)
    del results


def measure(shape: str, dtype: str, what: str, rounds: int, flush: Any) -> list[dict]:
    arguments, graphs = inputs(shape, dtype), {}
    expected = exact(*arguments)
    for side in SIDES:
        graph, found = capture(calls(side, *arguments)[what])
        graph.replay()
        first = tuple(t.clone() for t in found)
        graph.replay()
        if not is_right(what, first, expected, dtype):
            print(f"WRONG: {shape} {dtype} {what} by {side}")
        elif side == "anyop" and not all(map(torch.equal, first, found)):
            print(f"WRONG: {shape} {dtype} {what}: other bits the second time")
        else:
            graphs[side] = graph
    times = paced_turns(graphs, rounds, flush)
    T, K, V = map(int, shape.split("x"))
    flops = 2.0 * T * K * V * (1 if what == "forward" else 3)  # what must be multiplied
    del graphs, arguments, expected
    torch.cuda.empty_cache()
    return [
        {"case": what, "shape": shape, "dtype": dtype, "side": side, "median_us": round(us, 1),
         "tflops": round(flops / us / 1e6, 1), "memory_mib": memory(side, shape, dtype, what)}
        for side, us in times.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(SHAPES), metavar="TxKxV,TxKxV")
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--memory-of", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return
    if options.memory_of:
        print_memory(*options.memory_of)
        return
    import anyop

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    rows = []
    for shape in options.only.split(","):
        for dtype in options.dtypes.split(","):
            for what in ("forward", "forward and backward"):
                for row in measure(shape, dtype, what, options.rounds, flush):
                    print(*row.values(), sep="  ", flush=True)
                    rows.append(row)
    print("written to", write("cuda_loss", rows, environment(anyop, torch) | device()))


if __name__ == "__main__":
    main()
