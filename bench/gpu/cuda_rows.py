# SPDX-License-Identifier: Apache-2.0
"""Times CUDA kernels against torch, torch.compile, Liger and FlagGems, as shares of what a + b -> c reaches then.

    python bench/gpu/cuda_rows.py [--families norms,softmaxes] [--only rms_norm,add] [--shapes 8192x8192] [--rounds 60]
    python bench/gpu/cuda_rows.py --check            # small sizes, results alone, also on the CPU
    ncu --set full -k regex:Run python bench/gpu/cuda_rows.py --once --only rms_norm  # one call of each, for a profiler

What is timed stands in bench/gpu/row_cases.py, other projects' kernels in bench/gpu/row_peers.py. What of those is not
installed, refuses a call or is wrong is left out, and a line says so. Each side is captured into a CUDA graph and
checked against float64; then all sides take turns, the second cache filled with other bytes before each replay. The
share is of the bytes that the operator must read and write, over the median time and the ceiling: the bytes per
second of torch.add of three tensors of a gigabyte. Below 60 us the time of a kernel of one element is taken off. One
line of JSON for each side goes to bench/results/cuda_rows.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import environment, write

try:
    import torch
    from row_cases import FAMILIES, Case
    from row_peers import PEERS, missing, peer
except ImportError:
    torch = None

FIGURES = {
    "norms": 0.93,
    "softmaxes": 0.92,
    "losses": 0.90,
    "group_norms": 0.75,
    "masked": 0.88,
    "activations": 0.93,
    "ropes": 0.93,
    "quantisers": 0.93,
}
BACKWARD = {"norms": 0.90, "softmaxes": 0.95, "losses": 0.90}
FLUSH_BYTES = 256 << 20
SHORT_US = 60.0  # below it an empty kernel's time is taken off
WRONG: list[str] = []
LIMITS = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 2e-5}
SMALL = {"norms": "6x256", "softmaxes": "6x256", "losses": "6x256", "group_norms": "2x64", "masked": "16x64",
         "activations": "6x256", "ropes": "6x256", "quantisers": "6x256", "tables": "6x64"}  # fmt: skip


def maker(device: str, dtype: Any) -> Callable:
    """Normal numbers, the same in each run."""
    generator = torch.Generator(device).manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, device=device).to(dtype)


def listed(results: Any) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def check(case: Case, side: str, results: Any, exact: tuple) -> bool:
    """A result must be right before it is worth timing; what of ours is wrong is noted."""
    dtype = next(t.dtype for t in case.tensors if t.is_floating_point())
    limit = case.tolerance * LIMITS[str(dtype)[6:]]
    for found, expected in zip(listed(results), exact, strict=True):
        error, size = (found.double() - expected.double()).abs(), expected.double().abs()
        worst = (error / (1 + size)).nan_to_num(nan=float("inf")).max().item()
        if worst > limit:
            text = f"{case.operator} {case.shape} by {side}: error {worst:.1e}, limit {limit:.1e}"
            print("WRONG:", text, flush=True)
            if side not in PEERS:
                WRONG.append(text)
            return False
    return True


def poison(tensor: torch.Tensor) -> None:
    """So that a result must have been written."""
    if tensor.is_contiguous():
        tensor.view(torch.uint8).fill_(255)
    else:
        tensor.fill_(float("nan"))


def exact_results(case: Case) -> tuple:
    """By the formula, in float64."""
    wide = [t.double() if t.is_floating_point() else t for t in case.tensors]
    return listed(case.formula(*wide))


def sides_of(case: Case, names: list[str]) -> dict[str, Callable]:
    """Each a call without arguments."""
    torch._dynamo.reset()  # formulas of one text do not count as compiled again
    compiled = torch.compile(case.formula, dynamic=False)
    sides = {"anyop": case.call, "torch": case.torch, "torch.compile": compiled}
    found = {n: partial(side, *case.tensors) for n, side in sides.items() if side and n in names}
    for side in filter(names.__contains__, PEERS):
        with left_out(side, case):
            if call := peer(side, case):
                found[side] = call
    return found


@contextmanager
def left_out(side: str, case: Case) -> Iterator[None]:
    """Another project's kernel may refuse a call."""
    try:
        yield
    except Exception as error:
        if side not in PEERS:
            raise
        text = str(error).strip().split("\n")[0][:120]
        print(f"left out: {case.operator} {case.shape} by {side}: {type(error).__name__}: {text}")


def capture(call: Callable) -> tuple[Any, Any]:
    """A graph of one call, which ran before so that what is compiled is compiled; and its results."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results


def replay_in_turns(graphs: dict, rounds: int, flush: torch.Tensor) -> dict[str, list[float]]:
    """Microseconds of each replay."""
    pairs = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            begin.record()
            graph.replay()
            end.record()
            pairs[name].append((begin, end))
    torch.cuda.synchronize()
    return {n: [b.elapsed_time(e) * 1e3 for b, e in events] for n, events in pairs.items()}


def ceiling(rounds: int, flush: torch.Tensor) -> float:
    """Bytes per microsecond of a + b -> c."""
    numel = 1 << 28
    a, b, c = (torch.full((numel,), 1.0, device="cuda") for _ in range(3))
    graph, _ = capture(lambda: torch.add(a, b, out=c))
    times = replay_in_turns({"add": graph}, max(12, rounds // 4), flush)["add"]
    return 3 * 4 * numel / statistics.median(times)


def idle_time(rounds: int, flush: torch.Tensor) -> float:
    """Microseconds of a kernel of one element."""
    one = torch.zeros(1, device="cuda")
    graph, _ = capture(lambda: one.add_(0))
    return statistics.median(replay_in_turns({"": graph}, rounds, flush)[""])


def measure(
    case: Case, sides: dict[str, Callable], rounds: int, flush, limit: float, idle_us: float
) -> Iterator[dict]:
    """One row for each side."""
    exact, graphs = exact_results(case), {}
    moved = case.bytes or sum(
        t.numel() * t.element_size()
        for t in (*case.tensors, *listed(case.call(*case.tensors)))  # whoever is measured
    )
    for side, call in sides.items():
        with left_out(side, case):
            graph, results = capture(call)
            for tensor in listed(results):
                poison(tensor)
            getattr(call, "reset", lambda: None)()
            graph.replay()
            if check(case, side, results, exact) or side not in PEERS:
                graphs[side] = graph
    del exact
    for side, times in replay_in_turns(graphs, rounds, flush).items():
        median = statistics.median(times)
        busy = median - idle_us if median < SHORT_US else median
        yield {
            "case": case.operator, "shape": case.shape, "dtype": str(case.tensors[0].dtype)[6:],
            "side": side, "min_us": round(min(times), 2), "median_us": round(median, 2),
            "bytes": moved, "share_of_ceiling": round(moved / busy / limit, 3),
        }  # fmt: skip


def show(row: dict, family: str) -> None:
    """One line, with whether the figure is met."""
    figure = (BACKWARD if "backward" in row["case"] else FIGURES).get(family)
    verdict = ""
    if figure and row["side"] == "anyop":
        verdict = "  met" if row["share_of_ceiling"] >= figure else f"  MISSED {figure:.0%}"
    print(
        f"{row['case']:23}{row['shape']:>22} {row['dtype']:9}{row['side']:14}{row['min_us']:9.2f}"
        f"{row['median_us']:9.2f}{row['share_of_ceiling']:8.1%}{verdict}",
        flush=True,
    )


def device() -> dict:
    """The GPU, its driver and its clocks while it is at work."""
    asked = "name,driver_version,clocks.sm,clocks.mem,power.draw"
    try:
        line = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "--id=0"],
            capture_output=True, text=True, check=False,
        ).stdout.strip()  # fmt: skip
    except OSError:
        line = ""
    return {"gpu": torch.cuda.get_device_name(), "nvidia_smi": line, "cuda": torch.version.cuda}


def chosen(options: argparse.Namespace, shapes: dict[str, str], where: str) -> Iterator:
    """Families and cases that were asked for; one shape's tensors live at a time."""
    only = set(filter(None, options.only.split(",")))
    for family in filter(None, options.families.split(",")):
        for shape in (options.shapes or shapes[family]).split(","):
            rows, D = map(int, shape.split("x"))
            make = maker(where, getattr(torch, options.dtype))
            for case in FAMILIES[family][0](rows, D, make):
                if not only or case.operator in only:
                    yield family, case


def check_all(options: argparse.Namespace) -> None:
    where = "cuda" if torch.cuda.is_available() else "cpu"
    for _, case in chosen(options, SMALL, where):
        exact = exact_results(case)
        for side in ("call", "formula", "torch"):
            if getattr(case, side):
                check(case, side, getattr(case, side)(*case.tensors), exact)
        print("right:", case.operator, case.shape)


def main() -> str | None:
    """What was wrong, if something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--families", default=",".join(SMALL))
    parser.add_argument("--only", default="", metavar="OP,OP", help="default: all operators")
    parser.add_argument("--shapes", default="", help="default: each family's own")
    parser.add_argument("--sides", default="anyop,torch,torch.compile,liger,flag_gems")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--check", action="store_true", help="results of small calls alone")
    parser.add_argument("--once", action="store_true", help="one call of each, for a profiler")
    options = parser.parse_args()
    if torch is None:
        print("skipped: torch is not installed")
        return None
    import anyop
    import anyop.torch

    if options.check:
        check_all(options)
        return "; ".join(WRONG) or None
    if not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return None
    shapes = {name: shape for name, (_, shape) in FAMILIES.items()}
    if options.once:
        for _, case in chosen(options, shapes, "cuda"):
            print(case.operator, case.shape, flush=True)
            case.call(*case.tensors)
        return torch.cuda.synchronize()
    for side in PEERS:
        if side in options.sides and missing(side):
            print(missing(side))
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, idle_us = ceiling(options.rounds, flush), idle_time(options.rounds, flush)
    print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
    results = []
    with torch.no_grad():
        for family, case in chosen(options, shapes, "cuda"):
            sides = sides_of(case, options.sides.split(","))
            for row in measure(case, sides, options.rounds, flush, limit, idle_us):
                show(row, family)
                results.append(row | {"family": family, "ceiling_gb_per_s": round(limit / 1e3)})
    where = environment(anyop, torch) | device() | {"idle_us": round(idle_us, 2)}
    print("written to", write("cuda_rows", results, where))
    return "; ".join(WRONG) or None


if __name__ == "__main__":
    sys.exit(main())
