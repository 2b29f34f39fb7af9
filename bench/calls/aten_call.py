# SPDX-License-Identifier: Apache-2.0
"""Times calls of ATen, 4x4 float32, from C++, torch and NumPy against torch.<op>.

    python bench/calls/aten_call.py [--rounds 60]

Twelve operators in one run; results are compared first. C++ calls the typed functions of anyop/aten.h, on memory that
is lent at each call and on torch's own tensors, in the same process. One line of JSON for each goes to
bench/results/aten_call.jsonl. What comes before the first call: bench/calls/aten_start.py.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, spread, write

CALLS = 500
OPERATORS = ("add", "mul", "relu", "sum", "cat", "topk", "matmul", "where", "reshape", "add_")
OPERATORS += ("zeros", "embedding")
# What is asked of the median operator, by side.
FIGURES = {
    "C++, memory": 1.3,
    "C++, torch's": 1.3,
    "anyop.aten, torch": 2.0,
    "anyop.aten, NumPy": 3.0,
}


class Inputs(ctypes.Structure):
    """As in aten_call.cc."""

    _fields_ = [
        *((name, ctypes.c_float * 16) for name in ("x", "y", "sum")),
        ("rows", ctypes.c_int64 * 4),
        ("chosen", ctypes.c_bool * 16),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    import anyop
    import numpy as np
    import torch

    rows = calls(anyop, np, torch, rounds)
    where = environment(anyop, torch, np)
    print("written to", write("aten_call", rows, where).relative_to(ROOT), flush=True)


def calls(anyop, np, torch, rounds: int) -> list[dict]:
    torch.set_num_threads(1)
    inputs, arrays = make_inputs(np)
    native = library(inputs)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    plain, ours, numpy = (
        python_calls(torch, tensors, (4, 4)),
        python_calls(anyop.aten, tensors, (4, 4), like="torch"),
        python_calls(anyop.aten, arrays, (4, 4), like="numpy"),
    )
    check(np, native, plain, ours, numpy)
    print(
        f"{'ns, ratios of minima and medians':24}torch.<op>" + "".join(f"{s:>26}" for s in FIGURES)
    )
    rows = []
    for at, name in enumerate(OPERATORS):
        sides = {
            "torch.<op>": timed(plain[name]),
            "C++, memory": lambda at=at: native.aten_time(0, at, CALLS),
            "C++, torch's": lambda at=at: native.aten_time(1, at, CALLS),
            "anyop.aten, torch": timed(ours[name]),
            "anyop.aten, NumPy": timed(numpy[name]),
            "loop": timed(lambda: None),
        }
        rows += compare(name, turns(sides, rounds))
    for side, limit in FIGURES.items():
        ratios = [row["ratio"] for row in rows if row["side"] == side]
        median, within = statistics.median(ratios), sum(ratio <= limit for ratio in ratios)
        print(
            f"{side:18} median {median:.2f}, worst {max(ratios):.2f}, at most {limit} asked for: "
            f"{'met' if median <= limit else 'MISSED'}, by {within} of {len(ratios)} operators"
        )
        rows.append({"side": side, "median": median, "worst": max(ratios), "at_most": limit})
    return rows


def compare(name: str, times: dict[str, list[float]]) -> list[dict]:
    """Rows of one operator, printed. The loop of Python is not counted, that of C++ costs nothing."""
    loop_ns = min(times.pop("loop"))
    found = {
        side: spread([ns - (0 if "C++" in side else loop_ns) for ns in values])
        for side, values in times.items()
    }
    torch = found["torch.<op>"]
    rows, line = [], f"{name:22}{torch['min_ns']:12.0f}"
    for side, row in found.items():
        ratio, medians = (round(row[key] / torch[key], 3) for key in ("min_ns", "median_ns"))
        rows.append({"op": name, "side": side, **row, "ratio": ratio, "ratio_of_medians": medians})
        if side in FIGURES:
            line += f"{row['min_ns']:12.0f} ({ratio:4.2f}, {medians:4.2f})"
    print(line, flush=True)
    return rows


def make_inputs(np):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((4, 4), dtype=np.float32),
        "y": rng.standard_normal((4, 4), dtype=np.float32),
        "sum": np.zeros((4, 4), np.float32),
        "rows": np.array([3, 1, 0, 1]),
        "chosen": rng.random((4, 4)) < 0.5,
    }
    inputs = Inputs()
    for name, array in arrays.items():
        getattr(inputs, name)[:] = array.ravel().tolist()
    return inputs, arrays


def library(inputs: Inputs) -> ctypes.CDLL:
    """aten_call.cc, built against the header of this torch."""
    import anyop

    anyop.aten.zeros([1])  # opens table and glue in this process
    package = Path(anyop.__file__).parent
    folder = ROOT / "build" / "bench" / "aten_call"
    folder.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "anyop", "aten", "header", "--out", folder)
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-I", folder, "-I", package / "include"]
    link = ["-L", package / "lib", "-lanyop", f"-Wl,-rpath,{package / 'lib'}"]
    run("g++", *flags, ROOT / "bench/calls/aten_call.cc", *link, "-o", folder / "aten_call.so")
    native = ctypes.CDLL(str(folder / "aten_call.so"))
    native.aten_open.restype, native.aten_time.restype = ctypes.c_char_p, ctypes.c_double
    native.aten_result.restype = ctypes.c_int64
    problem = native.aten_open(ctypes.byref(inputs))
    assert problem is None, problem
    return native


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def python_calls(m, t: dict, shape, **like) -> dict:
    """The same calls of torch and of anyop.aten."""
    x, y, total, rows, chosen = (t[name] for name in ("x", "y", "sum", "rows", "chosen"))
    add, mul, relu, sum_, cat, topk = m.add, m.mul, m.relu, m.sum, m.cat, m.topk
    matmul, where, reshape, zeros, embedding = m.matmul, m.where, m.reshape, m.zeros, m.embedding
    in_place = (lambda: total.add_(y)) if not like else (lambda add_=m.add_: add_(total, y))
    return {
        "add": lambda: add(x, y),
        "mul": lambda: mul(x, 2.5),
        "relu": lambda: relu(x),
        "sum": lambda: sum_(x, 1),
        "cat": lambda: cat([x, y], 1),
        "topk": lambda: topk(x, 2)[0],
        "matmul": lambda: matmul(x, y),
        "where": lambda: where(chosen, x, y),
        "reshape": lambda: reshape(x, (2, 8)),
        "add_": in_place,
        "zeros": (lambda: zeros(shape, **like)) if like else (lambda: zeros(shape)),
        "embedding": lambda: embedding(x, rows),
    }


def check(np, native, *sides: dict) -> None:
    """All give the same bits."""
    out = (ctypes.c_float * 64)()
    for at, name in enumerate(OPERATORS):
        if name == "add_":  # of sums that sides share: one more y each
            assert all(np.isfinite(np.asarray(side[name]())).all() for side in sides)
            continue
        first = np.asarray(sides[0][name]()).copy()
        for side in sides[1:]:
            np.testing.assert_array_equal(np.asarray(side[name]()), first)
        for side in (0, 1):
            count = native.aten_result(side, at, out)
            np.testing.assert_array_equal(np.array(out[:count], np.float32), first.ravel())


def timed(call):
    """Nanoseconds of one call of Python."""

    def measure() -> float:
        repeat = range(CALLS)
        begin_ns = time.perf_counter_ns()
        for _ in repeat:
            call()
        return (time.perf_counter_ns() - begin_ns) / CALLS

    return measure


def turns(sides: dict, rounds: int) -> dict[str, list[float]]:
    """As harness.take_turns, of sides that measure themselves."""
    times = {name: [] for name in sides}
    order = list(sides)
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name in order:
            times[name].append(sides[name]())
        order.reverse()
    gc.enable()
    return times


if __name__ == "__main__":
    main()
