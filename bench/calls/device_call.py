# SPDX-License-Identifier: Apache-2.0
"""Times calls of operators on torch's device "anyop" against the device below it, cpu or cuda, in a loop of C++.

    python bench/calls/device_call.py [--size 8] [--rounds 60] [--instructions] [--write]

Tensors of 8x8 float32, one thread, no gradients; results are compared first. Sides take turns. "native again" says what
the clock is worth. "overlay, unrouted": native tensors while an overlay is on that sends the call nowhere else.
--instructions counts them under valgrind, which takes minutes and gives the same on a busy machine. With
--write one line of JSON for each goes to bench/results/device_call.jsonl.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import ROOT, environment, spread, write

CALLS = 1000  # of a turn; CUDA's queue holds as many
# What is measured, by the way that the device takes, and what is asked of it: time against native.
WAYS = {
    "unboxed": ("add", "mm", "relu", "relu_", "mul_", "cat", "sum", "softmax"),
    "boxed": ("std",),
    "own": ("view", "empty"),
}
HOT = ("add", "mm", "relu", "relu_", "mul_")
OVERLAY = "overlay, unrouted"
FIGURES = {"hot operators": 1.10, "boxed lean": 1.25, OVERLAY: 1.01}
OVERLAID = ("add", "mm", "relu", "relu_", "mul_", "sum", "cat")


def main() -> None:
    options = parse_arguments()
    if options.counted:
        return run_counted(options.size)
    rows = (instructions if options.instructions else times)(options)
    rows += judge(rows)
    if options.write:
        import anyop
        import torch

        gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
        path = write("device_call", rows, environment(anyop, torch) | gpu)
        print("written to", path.relative_to(ROOT))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=8, help="rows and columns")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--instructions", action="store_true", help="count them, by valgrind")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def tensors(size: int) -> dict:
    """Two tensors of each side."""
    import anyop.torch.device
    import torch

    torch.set_num_threads(1)
    native = "cuda" if anyop.torch.device.platform() == "cuda" else "cpu"
    torch.manual_seed(0)
    both = [torch.rand(size, size) for _ in range(2)]
    return {side: [t.to(side) for t in both] for side in ("anyop", native)}


def loop():
    """The loop of device_call.cc, built against this torch."""
    import torch
    from anyop import include_dir
    from anyop.native import recipe

    source, library = ROOT / "bench/calls/device_call.cc", ROOT / "build/bench/device_call.so"
    if not library.is_file() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        flags = recipe.with_torch(torch, include_dir(), str(source))
        subprocess.run(["c++", *flags, "-Wno-interference-size", "-o", library], check=True)
    torch.ops.load_library(library)
    return torch.ops.anyop_bench.bench.default


def check(found: dict) -> None:
    """The same bits on both sides."""
    import torch

    def results(a, b) -> list:
        made = [a + b, a @ b, a.relu(), torch.cat([a, b]), a.sum(), a.softmax(-1), a.std()]
        return [each.cpu() for each in [*made, a.clone().mul_(1.0), a.clone().relu_()]]

    for ours, native in zip(*(results(*pair) for pair in found.values()), strict=True):
        torch.testing.assert_close(ours, native, rtol=0, atol=0)


def times(options: argparse.Namespace) -> list[dict]:
    import torch

    found = tensors(options.size)
    check(found)
    ours, native = found.values()
    bench = loop()
    wait = torch.cuda.synchronize if native[0].is_cuda else lambda: None
    rows = []
    for way, cases in WAYS.items():
        for case in cases:

            def turn(pair, case=case) -> float:
                wait()
                return bench(case, *pair, CALLS)

            sides = {"native": lambda: turn(native), "anyop": lambda: turn(ours)}
            sides["native again"] = sides["native"]
            if case in OVERLAID:
                sides[OVERLAY] = lambda case=case: overlaid(case, native, turn)
            rows += compare(way, case, alternate(sides, options.rounds), spread, "min_ns")
    return rows


def overlaid(case: str, native, turn):
    """A turn with an overlay on that routes nothing elsewhere."""
    import torch

    ops = torch.ops.anyop_device
    number = ops.overlay.default([case], native[0].device.type, "")
    try:
        return turn(native)
    finally:
        ops.overlay_off.default(number)


def alternate(sides: dict, rounds: int) -> dict[str, list[float]]:
    """As harness.take_turns, of sides that measure themselves."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds):
        for name in order:
            found[name].append(sides[name]())
        order.reverse()
    return found


def compare(way: str, case: str, found: dict, summary, key: str) -> list[dict]:
    """Rows of one operator, printed. Native is the better of its two, which differ by chance alone."""
    values = {side: summary(numbers) for side, numbers in found.items()}
    native = min(values[side][key] for side in values if side.startswith("native"))
    rows = []
    for side, value in values.items():
        ratio = round(value[key] / native, 3)
        rows.append({"way": way, "op": case, "side": side, **value, "ratio": ratio})
    text = "".join(f"{row['side']:>19} {row[key]:7.0f} ({row['ratio']:.3f})" for row in rows)
    print(f"{way:8}{case:8}{text}", flush=True)
    return rows


def judge(rows: list[dict]) -> list[dict]:
    """The figures, by the median operator and the worst."""
    groups = {
        "hot operators": [r for r in rows if r["side"] == "anyop" and r["op"] in HOT],
        "boxed lean": [r for r in rows if r["side"] == "anyop" and r["way"] != "own"],
        OVERLAY: [r for r in rows if r["side"] == OVERLAY],
    }
    found = []
    for name, group in groups.items():
        ratios = [row["ratio"] for row in group]
        row = {"figure": name, "median": statistics.median(ratios), "worst": max(ratios)}
        row |= {
            "at_most": FIGURES[name],
            "unit": "instructions" if "instructions" in group[0] else "ns",
        }
        met = sum(ratio <= FIGURES[name] for ratio in ratios)
        print(
            f"{name:18} median {row['median']:.3f}, worst {row['worst']:.3f}, "
            f"at most {FIGURES[name]} asked for: by {met} of {len(ratios)} operators"
        )
        found.append(row)
    return found


def instructions(options: argparse.Namespace) -> list[dict]:
    """Of a call, as valgrind counts them inside Bench()."""
    if not shutil.which("valgrind"):
        raise SystemExit("--instructions needs valgrind")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--toggle-collect=*Bench(*long)",
        ]
        command += [f"--callgrind-out-file={out}", sys.executable, __file__]
        said = subprocess.run(
            [*command, "--counted", "--size", str(options.size)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if said.returncode != 0:
            raise SystemExit(said.stderr[-3000:])
        totals = [total(f"{out}.{at + 1}") for at in range(len(counted_calls()))]
    found: dict[tuple, dict] = {}
    for (way, case, side, _), few, many in zip(counted_calls()[::2], totals[::2], totals[1::2]):
        found.setdefault((way, case), {})[side] = [(many - few) / CALLS]
    rows: list[dict] = []
    for (way, case), sides in found.items():
        rows += compare(way, case, sides, lambda n: {"instructions": round(n[0])}, "instructions")
    return rows


def total(path: str) -> int:
    return int(re.search(r"^totals: (\d+)", Path(path).read_text(), re.M)[1])


def counted_calls() -> list[tuple]:
    """Each is a part of valgrind's output. What two numbers of calls differ by is counted."""
    return [
        (way, case, side, count)
        for way, cases in WAYS.items()
        for case in cases
        for side in ("native", "anyop", *[OVERLAY] * (case in OVERLAID))
        for count in (100, 100 + CALLS * 10 // 11)  # the loop warms up with a tenth more
    ]


def run_counted(size: int) -> None:
    """Under valgrind, which is told when to count and when to write."""
    ours, native = tensors(size).values()
    bench = loop()

    def turn(case: str, side: str, count: int) -> None:
        pair = ours if side == "anyop" else native
        if side == OVERLAY:
            overlaid(case, native, lambda pair: bench(case, *pair, count))
        else:
            bench(case, *pair, count)

    for _, case, side, _ in counted_calls():
        turn(case, side, 10)
    control("-i", "on")
    for _, case, side, count in counted_calls():
        turn(case, side, count)
        control("-d")


def control(*words: str) -> None:
    subprocess.run(["callgrind_control", *words, str(os.getpid())], check=True, capture_output=True)


if __name__ == "__main__":
    main()
