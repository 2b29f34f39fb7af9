# SPDX-License-Identifier: Apache-2.0
"""Times bitonic_sort beside torch.sort, and np.sort on the CPU: values and indices of each row.

    python examples/bitonic_sort/bench.py [--device cuda] [--rounds 20] [--write]

Every side is checked against a stable sort before it is timed; all take turns. Bytes are those that must be moved: the
row once, values and indices. --write adds a line for each side to bench/results/bitonic_sort.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyop
import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))
from harness import device_turns, environment, take_turns, write  # noqa: E402

# Rows and columns; the CPU gets a 64th of the rows.
SHAPES = [(1 << 20, 16), (1 << 16, 256), (1 << 15, 512), (1 << 14, 1024), (1 << 11, 8192)]
DTYPES = ("float32", "bfloat16")


def sides(x: torch.Tensor) -> dict[str, Callable]:
    """What is compared; the results are a pair of values and indices."""
    values, indices = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64, device=x.device)
    sort = anyop.ops.sorting.bitonic_sort
    found = {
        "anyop": lambda: sort(x, values=values, indices=indices),
        "torch stable": lambda: torch.sort(x, dim=-1, stable=True),
        "torch": lambda: torch.sort(x, dim=-1),
    }
    if not x.is_cuda and x.dtype == torch.float32:
        array = x.numpy()

        def numpy_sort():
            order = np.argsort(array, axis=-1, kind="stable")
            return np.take_along_axis(array, order, -1), order

        found["NumPy stable"] = numpy_sort
    return found


def check(name: str, found, x: torch.Tensor) -> None:
    """Values exactly; indices too, but those of an unstable sort only by the values they name."""
    values, indices = map(torch.as_tensor, found)
    expected = torch.sort(x, dim=-1, stable=True)
    same = torch.equal(values, expected.values) and torch.equal(x.gather(-1, indices), values)
    if name != "torch":
        same = same and torch.equal(indices, expected.indices)
    if not same:
        raise SystemExit(f"{name} sorts {tuple(x.shape)} of {x.dtype} wrongly")


def measure(rows: int, D: int, dtype: str, device: str, rounds: int):
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(rows, D, generator=generator, device=device).to(getattr(torch, dtype))
    by = sides(x)
    for name, side in by.items():
        check(name, side(), x)
    times = device_turns(by, rounds, 5) if device == "cuda" else take_turns(by, rounds)
    own = statistics.median(times["anyop"])
    for name, each in times.items():
        median = statistics.median(each)
        yield {
            "rows": rows, "columns": D, "dtype": dtype, "device": device, "side": name,
            "min_us": round(min(each) / 1e3, 2), "median_us": round(median / 1e3, 2),
            "ratio": round(median / own, 2),
            "gb_per_s": round(rows * D * (2 * x.element_size() + 8) / median, 2),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="add to bench/results")
    options = parser.parse_args()
    backends = ["cpu", "cuda"] if options.device == "cuda" else ["cpu"]
    with tempfile.TemporaryDirectory() as folder:
        anyop.load(anyop.build(HERE / "ops", out=folder, name="sorting", backends=backends))
    where = environment(anyop, torch, np)
    if options.device == "cuda":
        where["gpu"] = torch.cuda.get_device_name()
    print(
        f"{'shape':>13} {'dtype':9}{'side':14}{'min us':>11}{'median us':>11}{'/ anyop':>9}{'GB/s':>9}"
    )
    results = []
    for rows, D in SHAPES:
        for dtype in DTYPES:
            rows_here = rows if options.device == "cuda" else rows // 64
            for row in measure(rows_here, D, dtype, options.device, options.rounds):
                print(
                    f"{row['rows']:>8}x{D:<4} {dtype:9}{row['side']:14}{row['min_us']:11.1f}{row['median_us']:11.1f}"
                    f"{row['ratio']:9.2f}{row['gb_per_s']:9.2f}"
                )
                results.append(row)
    if options.write:
        print("written to", write("bitonic_sort", results, where))


if __name__ == "__main__":
    main()
