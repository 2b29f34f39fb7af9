# SPDX-License-Identifier: Apache-2.0
"""Times attention and its kin on the CPU against what one writes with torch, in one run.

    python bench/cpu/attention.py [--rounds 20] [--only attention,mla_decode] [--sizes 1x512] \
                              [--dtypes float32,bfloat16] [--threads 1,2]

What is timed stands in attention_cases.py. Each result is first compared with torch in float64; then both sides
take turns, on the same tensors, with new results, and glibc told to keep freed memory. One thread is timed by the
process's CPU time, more by the clock on the wall. One line of JSON for each case
goes to bench/results/attention.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import anyop.torch
import torch
from attention_cases import Case, cases
from harness import beside_torch_options, environment, spread, take_turns, write

NOISE = 0.05  # of a ratio, that is forgiven
LONGEST_NS = 2e9  # of the turns of a side, but for three
CALL_NS = 1e6  # of calls in a row that make one time: less than a turn on a shared processor


def listed(results) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def check(case: Case) -> None:
    """The result must be right before it is worth timing."""
    dtype = str(case.tensors[0].dtype).removeprefix("torch.")
    limit = case.tolerance * anyop.metadata(case.operator)["tolerance"].get(dtype, 0)
    exact = listed(case.torchs(*map(wide, case.tensors)))
    for found, expected in zip(listed(case.ours(*case.tensors)), exact, strict=True):
        found, expected = found.double(), expected.double()
        error = ((found - expected).abs() / (1 + expected.abs())).max().item()
        if not error <= limit:
            raise SystemExit(
                f"{case.operator} {case.sizes} {dtype}: error {error:.1e}, expected at most {limit:.1e}"
            )


def measure(case: Case, threads: int, rounds: int) -> dict:
    torch.set_num_threads(threads)
    anyop.set_num_threads(threads)
    sides = {
        "anyop": lambda: case.ours(*case.tensors),
        "torch": lambda: case.torchs(*case.tensors),
    }
    # Others' work on the same processors does not count against one thread.
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    once = [times[0] for times in take_turns(sides, 1, clock=clock).values()]
    rounds = min(rounds, max(3, int(LONGEST_NS / max(once))))
    times = take_turns(sides, rounds, max(1, int(CALL_NS / min(once))), clock=clock)
    found = {side: spread(t) for side, t in times.items()}
    ratios = {
        name: round(found["torch"][key] / found["anyop"][key], 3)
        for name, key in (("ratio", "min_ns"), ("ratio_of_medians", "median_ns"))
    }
    dtype = str(case.tensors[0].dtype).removeprefix("torch.")
    row = {"operator": case.operator, "sizes": case.sizes, "dtype": dtype, "threads": threads}
    row["clock"] = "cpu" if threads == 1 else "wall"
    return row | found | ratios


def show(row: dict) -> None:
    slower = row["ratio"] < 1 - NOISE and row["ratio_of_medians"] < 1 - NOISE
    print(
        f"{row['operator']:19}{row['sizes']:32}{row['dtype']:9}{row['threads']:2}"
        f"{row['anyop']['min_ns'] / 1e3:10.1f}{row['torch']['min_ns'] / 1e3:10.1f}"
        f"{row['ratio']:7.2f}{row['ratio_of_medians']:7.2f}{'  slower' * slower}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", default="", help="cases whose sizes begin so")
    options = beside_torch_options(parser)
    print(f"{'':62}{'anyop us':>10}{'torch us':>10}{'ratio':>7}{'median':>7}")
    only = set(filter(None, options.only.split(",")))
    with torch.no_grad():
        for dtype in options.dtypes.split(","):
            rows = []
            for case in cases(getattr(torch, dtype)):
                if (only and case.operator not in only) or not case.sizes.startswith(options.sizes):
                    continue
                check(case)
                for threads in map(int, options.threads.split(",")):
                    rows.append(measure(case, threads, options.rounds))
                    show(rows[-1])
            if not options.dry:
                print("written to", write("attention", rows, environment(anyop, torch)).name)


if __name__ == "__main__":
    main()
