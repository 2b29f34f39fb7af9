# SPDX-License-Identifier: Apache-2.0
"""Times the CPU kernels against torch's best expression of each and against a copy, in one run.

    python bench/cpu/kernels.py [--seconds 0.05] [--only rms_norm,add] [--dtypes float32,bfloat16] [--shapes 64x4096] \
                            [--threads 1,2]

What is timed stands in kernel_cases.py. Each result is first compared with torch in float64; then both sides take
turns for some milliseconds, 3 rounds at least and 50 at most, so that all of it ends within some minutes. Both return
new tensors; glibc is told to keep freed memory, so that no side pays for pages of the kernel. The share is of the bytes
per second of a copy: bytes that the operator must read and write, over its time. One line of JSON for each case goes to
bench/results/kernels.jsonl.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import anyop.torch
import numpy as np
import torch
from harness import beside_torch_options, environment, spread, take_turns, write
from kernel_cases import Case, cases

# torch's time over anyop's, at least; of all others 1. A share of NOISE is forgiven.
FIGURES = {"rms_norm_backward": 3, "layer_norm_backward": 3, "fused_add_rms_norm_backward": 3,
           "fused_add_layer_norm_backward": 3}  # fmt: skip
NOISE = 0.05
CALL_NS = 2e5  # of calls in a row that make one time: less than a turn on a shared processor
ROUNDS = 3, 50  # at least and at most


def listed(results) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def check(case: Case) -> None:
    """The result must be right before it is worth timing."""
    if case.name == "copy":
        return
    limits = anyop.metadata(case.operator)["tolerance"]
    exact = listed(case.torchs(*map(wide, case.tensors)))
    for result, expected in zip(listed(case.ours(*case.tensors)), exact, strict=True):
        found = result.double()
        expected = expected.double().reshape(found.shape)
        error = ((found - expected).abs() / (1 + expected.abs())).max().item()
        dtypes = {str(t.dtype).removeprefix("torch.") for t in (*case.tensors, result)}
        limit = case.tolerance * max(limits.get(dtype, 0) for dtype in dtypes)
        limit = 0.13 if "quant" in case.name else limit
        if not error <= limit:
            raise SystemExit(
                f"{case.name}, {dtypes}: error {error:.1e}, expected at most {limit:.1e}; nothing more was timed"
            )


def turns(sides: dict, seconds: float) -> dict[str, list[float]]:
    """Times of both sides, in turns, for about so many seconds; of fast calls several in a row make one time."""
    once = {name: min(t) for name, t in take_turns(sides, 1).items()}
    calls = {name: max(1, int(CALL_NS / t)) for name, t in once.items()}
    round_ns = sum((calls[name] + 1) * t for name, t in once.items())
    return take_turns(sides, int(min(max(seconds * 1e9 / round_ns, ROUNDS[0]), ROUNDS[1])), calls)


def measure(dtype: str, rows: int, D: int, options, only: set[str]) -> list[dict]:
    results, copy_rate = {}, {}
    for case in cases(getattr(torch, dtype), rows, D):
        if only and case.name != "copy" and not only & {case.operator, case.name}:
            continue
        check(case)
        sides = {"anyop": lambda c=case: c.ours(*c.tensors),
                 "torch": lambda c=case: c.torchs(*c.tensors)}  # fmt: skip
        for threads in map(int, options.threads.split(",")):
            torch.set_num_threads(threads)
            anyop.set_num_threads(threads)
            times = turns(sides, options.seconds)
            best, median = (
                {k: spread(v)[key] for k, v in times.items()} for key in ("min_ns", "median_ns")
            )
            row = {"case": case.name, "dtype": dtype, "rows": rows, "columns": D}
            row["threads"] = threads
            for side in sides:
                row |= {
                    f"{side}_min_us": round(best[side] / 1e3, 2),
                    f"{side}_median_us": round(median[side] / 1e3, 2),
                }
            row["ratio"] = round(best["torch"] / best["anyop"], 2)
            row["ratio_of_medians"] = round(median["torch"] / median["anyop"], 2)
            row["share_of_copy"] = case.moved / best["anyop"]
            results[case.name, threads] = row
            if case.name == "copy":
                copy_rate[threads] = row["share_of_copy"]
            show(row)
    for row in results.values():
        row["share_of_copy"] = round(row["share_of_copy"] / copy_rate[row["threads"]], 2)
    return list(results.values())


def show(row: dict) -> None:
    figure = FIGURES.get(row["case"], 1 - NOISE)
    verdict = "" if row["case"] == "copy" or row["ratio"] >= figure else f"  MISSED {figure}"
    shape = f"{row['rows']}x{row['columns']}"
    print(
        f"{row['case']:45}{row['dtype']:9}{shape:>10}{row['threads']:3}{row['anyop_min_us']:10.1f}"
        f"{row['anyop_median_us']:10.1f}{row['torch_min_us']:10.1f}{row['ratio']:7.2f}{row['ratio_of_medians']:7.2f}{verdict}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.05, help="for each case; of both sides")
    parser.add_argument("--shapes", default="1x4096,64x4096,2048x1024")
    options = beside_torch_options(parser)
    print(f"{'case':45}{'dtype':9}{'shape':>10}{'thr':>3}{'anyop us':>10}{'median':>10}"
          f"{'torch us':>10}{'ratio':>7}{'median':>7}")  # fmt: skip
    only = set(filter(None, options.only.split(",")))
    gc.collect()
    gc.freeze()  # take_turns collects before each case: 0.2 s for the modules of torch, 12 minutes in all
    begin = time.monotonic()
    with torch.no_grad():
        for shape, dtype in itertools.product(options.shapes.split(","), options.dtypes.split(",")):
            rows, D = map(int, shape.split("x"))
            results = measure(dtype, rows, D, options, only)
            print(f"{time.monotonic() - begin:.0f} s")
            if not options.dry:
                print("written to", write("kernels", results, environment(anyop, np, torch)))


if __name__ == "__main__":
    main()
