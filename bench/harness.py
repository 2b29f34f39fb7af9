# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: sides that take turns in one run, and one line of JSON for each result."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# Read by glibc when a process starts.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def take_turns(
    sides: dict[str, Callable], rounds: int, calls: int | dict[str, int] = 1, pause_s: float = 0.0,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, list[float]]:  # fmt: skip
    """Nanoseconds of one call, for each side and round. Which side goes first alternates from round to round.

    calls: in a row, which make one time; a dict has a number for each side.
    """
    times_ns: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name in order:
            side, count = sides[name], calls[name] if isinstance(calls, dict) else calls
            repeat = range(count)
            time.sleep(pause_s)
            side()
            begin_ns = clock()
            for _ in repeat:
                side()
            times_ns[name].append((clock() - begin_ns) / count)
        order.reverse()
    gc.enable()
    return times_ns


def device_turns(sides: dict[str, Callable], rounds: int, calls: int) -> dict[str, list[float]]:
    """The same by the clock of a CUDA device, on the current stream; each is the mean of some calls in a row."""
    import torch

    pairs = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            side()
            begin.record()
            for _ in range(calls):
                side()
            end.record()
            pairs[name].append((begin, end))
        torch.cuda.synchronize()
    return {n: [b.elapsed_time(e) * 1e6 / calls for b, e in events] for n, events in pairs.items()}


def beside_torch_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Of a program that times operators beside torch on the CPU, in a process that keeps the memory it has."""
    parser.add_argument("--only", default="", metavar="OP,OP", help="default: all operators")
    parser.add_argument("--dtypes", default="float32,bfloat16,float16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    if any(os.environ.get(k) != v for k, v in KEEP_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    return options


def spread(times_ns: list[float]) -> dict[str, float]:
    return {"min_ns": round(min(times_ns), 1), "median_ns": round(statistics.median(times_ns), 1)}


def beside_torch(
    what: str, sizes: str, ours: Callable, theirs: Callable, limit: float, rounds: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict:  # fmt: skip
    """Two calls that give a tensor: their largest difference is at most `limit`, then they are timed in turns."""
    found = ours()
    dtype, found, expected = (
        str(found.dtype).removeprefix("torch."),
        found.double().clone(),
        theirs(),
    )
    if not ((found - expected.double()).abs().max() <= limit):
        raise SystemExit(f"{what} {sizes} {dtype}: wrong, nothing was timed")
    turns = take_turns({"anyop": ours, "torch": theirs}, rounds, clock=clock)
    times = {name: spread(t) for name, t in turns.items()}
    best_ns = times["anyop"]["min_ns"]
    ratio = times["torch"]["min_ns"] / best_ns
    note = "" if ratio >= 0.95 else "  slower"  # what noise is forgiven
    print(f"{what:12} {dtype:9} {sizes:48} {best_ns / 1e6:9.3f} ms {ratio:6.2f}x{note}", flush=True)
    return {"sizes": sizes, "dtype": dtype, **times, "ratio": round(ratio, 3)}


def environment(*libraries) -> dict:
    """Where and with what a result was measured."""
    versions = {library.__name__: library.__version__ for library in libraries}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "commit": commit(),
        "cpu": cpu(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def commit() -> str:
    """The commit that is checked out; + when the tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", ROOT, *words], capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (
        "+" if git("status", "--porcelain", "--", ":!bench/results") else ""
    )


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def write(bench: str, rows: list[dict], where: dict) -> Path:
    """Add rows to bench/results/<bench>.jsonl, each with where it was measured."""
    path = ROOT / "bench" / "results" / f"{bench}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps({"bench": bench, **row, **where}) + "\n")
    return path
