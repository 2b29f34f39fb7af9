# SPDX-License-Identifier: Apache-2.0
"""Times the CUDA kernels of rows against torch and torch.compile, as shares of what a + b -> c reaches in the same run.

    python bench/cuda_rows.py [--rounds 60] [--only rms_norm,add] [--shapes 8192x8192,64x8192]

Each side is captured into a CUDA graph and checked against float64; then all sides take turns, the second cache filled
with other bytes before each replay. The share is of the bytes that the operator must read and write, over the median
time and the ceiling: the bytes per second of torch.add of three tensors of a gigabyte. One line of JSON for each side
goes to bench/results/cuda_rows.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import anyop
from harness import environment, write

try:
    import torch
except ImportError:
    torch = None

SHAPES = "8192x8192,16384x4096,8192x7168,2048x65536,64x8192"
EPS = 1e-6
# Share of the ceiling that anyop must reach, by operator, for 8192x8192 of bfloat16.
FIGURES = {"rms_norm": 0.88, "rms_norm_backward": 0.87}
FLUSH_BYTES = 256 << 20
LIMITS = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 2e-5}


@dataclass
class Case:
    """One operator and shape: the sides that compute it, and how many tensors of x's size are moved."""

    operator: str
    exact: Callable  # the results in float64, for some rows; sums over rows as magnitudes allow
    sides: dict[str, Callable] = field(default_factory=dict)
    tensors: float = 2


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rms_formula(x, weight):
    """What a model writes and torch.compile fuses."""
    return rms(x.float(), weight.float()).to(x.dtype)


def backward_formula(grad, x, weight):
    g, v, w = grad.float(), x.float(), weight.float()
    scale = torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
    product = g * w
    grad_x = scale * (product - v * scale.square() * (product * v).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), (g * v * scale).sum(0).to(x.dtype)


def double_backward(grad, x, weight):
    """In float64, some rows at a time."""
    grads, total = [], torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for g, v in zip(grad.split(512), x.split(512)):
        g, v = g.double(), v.double()
        scale = torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
        product = g * weight.double()
        slope = scale.square() * (product * v).mean(-1, keepdim=True)
        grads.append((scale * (product - v * slope)).float())
        total += (g * v * scale).sum(0)
    return torch.cat(grads), total


def torch_backward(grad, x, weight):
    """Torch's own kernels of the backward pass, without autograd's bookkeeping."""
    _, scale = torch.ops.aten._fused_rms_norm(x, [x.shape[1]], weight, EPS)
    call = torch.ops.aten._fused_rms_norm_backward
    return lambda: call(grad, x, [x.shape[1]], scale, weight, [True, True])


def cases(rows: int, D: int, dtype: torch.dtype):
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    x, grad, weight = random(rows, D), random(rows, D), random(D)
    out, grad_weight = torch.empty_like(x), torch.empty_like(weight)
    compiled = torch.compile(rms_formula, dynamic=False)
    yield Case(
        "rms_norm",
        lambda: (torch.cat([rms(v.double(), weight.double()).float() for v in x.split(512)]),),
        {
            "anyop": lambda: anyop.rms_norm(x, weight, EPS, out=out),
            "torch.ops.anyop": lambda: torch.ops.anyop.rms_norm(x, weight, EPS),
            "torch": lambda: torch.nn.functional.rms_norm(x, (D,), weight, EPS),
            "torch.compile": lambda: compiled(x, weight),
        },
    )
    compiled_backward = torch.compile(backward_formula, dynamic=False)
    yield Case(
        "rms_norm_backward",
        lambda: double_backward(grad, x, weight),
        {
            "anyop": lambda: anyop.rms_norm_backward(
                grad, x, weight, EPS, grad_x=out, grad_weight=grad_weight
            ),
            "torch.ops.anyop": lambda: torch.ops.anyop.rms_norm_backward(grad, x, weight, EPS),
            "torch": torch_backward(grad, x, weight),
            "torch.compile": lambda: compiled_backward(grad, x, weight),
        },
        3,
    )
    yield Case(
        "add",
        lambda: (x.float() + grad.float(),),
        {
            "anyop": lambda: anyop.add(x, grad, out=out),
            "torch.ops.anyop": lambda: torch.ops.anyop.add(x, grad),
            "torch": lambda: torch.add(x, grad, out=out),
        },
        3,
    )


def check(case: Case, side: str, results, dtype: str) -> None:
    """A result must be right before it is worth timing. Sums over rows: by the root of their number."""
    results = results if isinstance(results, tuple) else (results,)
    for found, exact in zip(results, case.exact(), strict=True):
        error = ((found.double() - exact.double()).abs() / (1 + exact.double().abs())).max().item()
        limit = LIMITS[dtype]
        if not error <= limit:
            raise SystemExit(f"{case.operator} by {side}: error {error:.1e}, limit {limit:.1e}")


def capture(call: Callable):
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


def measure(case: Case, rows: int, D: int, dtype: str, rounds: int, flush, limit: float):
    graphs = {}
    for side, call in case.sides.items():
        graph, results = capture(call)
        for tensor in results if isinstance(results, tuple) else (results,):
            tensor.fill_(float("nan"))
        graph.replay()
        check(case, side, results, dtype)
        graphs[side] = graph
    for side, times in replay_in_turns(graphs, rounds, flush).items():
        item = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        median = statistics.median(times)
        rate = case.tensors * rows * D * item / median
        yield {
            "case": case.operator, "rows": rows, "columns": D, "dtype": dtype, "side": side,
            "min_us": round(min(times), 2), "median_us": round(median, 2),
            "gb_per_s": round(rate / 1e3), "share_of_ceiling": round(rate / limit, 3),
        }  # fmt: skip


def show(row: dict) -> None:
    figure = FIGURES.get(row["case"])
    applies = (row["rows"], row["columns"], row["dtype"]) == (8192, 8192, "bfloat16")
    verdict = ""
    if figure and applies and "anyop" in row["side"]:
        met = "met" if row["share_of_ceiling"] >= figure else "MISSED"
        verdict = f"  >= {figure:.0%} {met}"
    shape = f"{row['rows']}x{row['columns']}"
    print(
        f"{row['case']:19}{shape:>12} {row['dtype']:9}{row['side']:17}{row['min_us']:9.2f}{row['median_us']:9.2f}"
        f"{row['gb_per_s']:7}{row['share_of_ceiling']:8.1%}{verdict}",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", default="", metavar="OP,OP", help="default: all operators")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtype", default="bfloat16", choices=LIMITS)
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return
    import anyop.torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit = ceiling(options.rounds, flush)
    empty = torch.cuda.CUDAGraph()
    with torch.cuda.graph(empty):
        pass
    idle = statistics.median(replay_in_turns({"": empty}, options.rounds, flush)[""])
    print(f"ceiling {limit / 1e3:.0f} GB/s, an empty graph {idle:.2f} us")
    only = set(filter(None, options.only.split(",")))
    results = []
    with torch.no_grad():
        for shape in options.shapes.split(","):
            rows, D = map(int, shape.split("x"))
            for case in cases(rows, D, getattr(torch, options.dtype)):
                if only and case.operator not in only:
                    continue
                for row in measure(case, rows, D, options.dtype, options.rounds, flush, limit):
                    show(row)
                    results.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
    where = environment(anyop, torch) | device()
    print("written to", write("cuda_rows", results, where))


if __name__ == "__main__":
    sys.exit(main())
