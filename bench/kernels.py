# SPDX-License-Identifier: Apache-2.0
"""Times the memory-bound CPU kernels against torch and against a copy, on one thread, in one run.

    python bench/kernels.py [--rounds 15] [--only rms_norm,add] [--dtypes float32,bfloat16] [--rows 2048,64]

Both sides read the same tensors and write the same one: torch is given out= wherever it takes it. Each result is first
compared with torch in float64. The share is of the bytes per second of a copy: bytes that the operator must read and
write, over its time. One line of JSON for each case goes to bench/results/kernels.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import anyop
import numpy as np
import torch
from harness import environment, spread, take_turns, write
from torch.nn import functional

D = 4096
# (operator, dtype): torch's time over anyop's, at least, for 2,048 rows. Of all others: 1, within the noise below.
FIGURES = {
    ("rms_norm", "float32"): 5,
    ("rms_norm", "bfloat16"): 15,
    ("layer_norm", "float32"): 2,
    ("gelu tanh", "float32"): 2.5,
    ("softmax", "float32"): 1,
}
NOISE = 0.05


@dataclass
class Case:
    """Two ways to fill the same tensor, and how many tensors of x's size are read and written."""

    name: str
    ours: Callable
    theirs: Callable
    exact: Callable  # in float64
    out: torch.Tensor
    tensors: float = 2

    @property
    def operator(self) -> str:
        return self.name.split()[0]


def cases(dtype: torch.dtype, rows: int):
    random = torch.Generator().manual_seed(0)
    x, other = (torch.randn(rows, D, generator=random).to(dtype) for _ in range(2))
    weight, bias = (torch.rand(D, generator=random).to(dtype) for _ in range(2))
    y = torch.empty_like(x)
    X, Z, W, B = (t.double() for t in (x, other, weight, bias))
    half, pooled = y.view(-1, D)[: rows // 2], y.view(-1)[: rows * D // 128].view(-1, 1024)
    pairs, tokens = x.view(rows // 2, 2 * D), x.view(-1, 128, 1024)
    mask = torch.rand(tokens.shape[:2], generator=random) < 0.7
    gate, value = pairs.chunk(2, -1)

    def pool(tokens, keep):
        return torch.div(
            (tokens * keep).sum(1), keep.sum(1), out=pooled if tokens.dtype == dtype else None
        )

    yield Case(
        "rms_norm",
        lambda: anyop.rms_norm(x, weight, out=y),
        lambda: functional.rms_norm(x, (D,), weight, 1e-6),
        lambda: functional.rms_norm(X, (D,), W, 1e-6),
        y,
    )
    yield Case(
        "layer_norm",
        lambda: anyop.layer_norm(x, weight, bias, out=y),
        lambda: functional.layer_norm(x, (D,), weight, bias),
        lambda: functional.layer_norm(X, (D,), W, B),
        y,
    )
    yield Case(
        "l2_normalize",
        lambda: anyop.l2_normalize(x, out=y),
        lambda: functional.normalize(x, dim=-1, out=y),
        lambda: functional.normalize(X, dim=-1),
        y,
    )
    yield Case(
        "softmax",
        lambda: anyop.softmax(x, out=y),
        lambda: torch.softmax(x, -1, out=y),
        lambda: torch.softmax(X, -1),
        y,
    )
    yield Case(
        "log_softmax",
        lambda: anyop.log_softmax(x, out=y),
        lambda: torch.log_softmax(x, -1, out=y),
        lambda: torch.log_softmax(X, -1),
        y,
    )
    yield Case(
        "softmax dim=0",
        lambda: anyop.softmax(x, 0, out=y),
        lambda: torch.softmax(x, 0, out=y),
        lambda: torch.softmax(X, 0),
        y,
    )
    for form in ("none", "tanh"):
        yield Case(
            f"gelu {form}",
            lambda form=form: anyop.gelu(x, approximate=form, out=y),
            lambda form=form: torch.ops.aten.gelu.out(x, approximate=form, out=y),
            lambda form=form: functional.gelu(X, approximate=form),
            y,
        )
    yield Case(
        "silu",
        lambda: anyop.silu(x, out=y),
        lambda: torch.ops.aten.silu.out(x, out=y),
        lambda: functional.silu(X),
        y,
    )
    yield Case(
        "relu",
        lambda: anyop.relu(x, out=y),
        lambda: torch.clamp_min(x, 0, out=y),
        lambda: functional.relu(X),
        y,
    )
    yield Case(
        "silu_and_mul",
        lambda: anyop.silu_and_mul(pairs, out=half),
        lambda: torch.mul(functional.silu(gate), value, out=half),
        lambda: functional.silu(gate.double()) * value.double(),
        half,
        1.5,
    )
    yield Case(
        "add",
        lambda: anyop.add(x, other, out=y),
        lambda: torch.add(x, other, out=y),
        lambda: X + Z,
        y,
        3,
    )
    yield Case(
        "add bias",
        lambda: anyop.add(x, weight, out=y),
        lambda: torch.add(x, weight, out=y),
        lambda: X + W,
        y,
    )
    yield Case(
        "mul",
        lambda: anyop.mul(x, other, out=y),
        lambda: torch.mul(x, other, out=y),
        lambda: X * Z,
        y,
        3,
    )
    yield Case(
        "masked_mean",
        lambda: anyop.masked_mean(tokens, mask, out=pooled),
        lambda: pool(tokens, mask[..., None].to(dtype)),
        lambda: pool(tokens.double(), mask[..., None]),
        pooled,
        1,
    )
    for name in ("float32", "bfloat16", "float16"):
        target = getattr(torch, name)
        if target != dtype:
            cast = torch.empty(x.shape, dtype=target)
            size = 1 + cast.element_size() / x.element_size()
            yield Case(
                f"cast to {name}",
                lambda name=name, cast=cast: anyop.cast(x, name, out=cast),
                lambda cast=cast: cast.copy_(x),
                lambda target=target: x.to(target).double(),
                cast,
                size,
            )
    yield Case("copy", lambda: y.copy_(x), lambda: y.copy_(x), lambda: X, y)


def check(case: Case, dtype: str) -> None:
    """The result must be right before it is worth timing."""
    case.out.fill_(float("nan"))
    case.ours()
    exact = case.exact()
    error = ((case.out.double() - exact).abs() / (1 + exact.abs())).max().item()
    limit = (
        0
        if case.name == "copy"
        else anyop.metadata(case.operator)["tolerance"][str(case.out.dtype).removeprefix("torch.")]
    )
    if not error <= limit:
        raise SystemExit(
            f"{case.name}, {dtype}: error {error:.1e}, expected at most {limit:.1e}; nothing more was timed"
        )


def measure(dtype: str, rows: int, rounds: int, only: set[str]) -> list[dict]:
    results, copy_rate = [], None
    for case in reversed(
        list(cases(getattr(torch, dtype), rows))
    ):  # the copy first: the others are measured by it
        if only and case.operator not in only and case.name != "copy":
            continue
        check(case, dtype)
        calls = 1 if rows * D > 1e6 else 20
        times = take_turns({"anyop": case.ours, "torch": case.theirs}, rounds, calls)
        best, median = (
            {k: spread(v)[key] for k, v in times.items()} for key in ("min_ns", "median_ns")
        )
        rate = case.tensors / best["anyop"]
        copy_rate = copy_rate or rate
        row = {"case": case.name, "dtype": dtype, "rows": rows, "columns": D}
        for side in ("anyop", "torch"):
            row |= {
                f"{side}_min_us": round(best[side] / 1e3, 1),
                f"{side}_median_us": round(median[side] / 1e3, 1),
            }
        row["ratio"] = round(best["torch"] / best["anyop"], 2)
        row["ratio_of_medians"] = round(median["torch"] / median["anyop"], 2)
        row["share_of_copy"] = round(rate / copy_rate, 2)
        results.append(row)
    return results[::-1]


def show(result: dict) -> None:
    figure = (
        FIGURES.get((result["case"], result["dtype"]), 1 - NOISE)
        if result["rows"] == 2048
        else None
    )
    verdict = (
        ""
        if figure is None or result["case"] == "copy"
        else f"  >= {figure:<5}{'met' if result['ratio'] >= figure else 'MISSED'}"
    )
    print(
        f"{result['case']:17}{result['dtype']:10}{result['rows']:5}{result['anyop_min_us']:10.1f}{result['anyop_median_us']:10.1f}"
        f"{result['torch_min_us']:10.1f}{result['ratio']:8.2f}{result['ratio_of_medians']:8.2f}{result['share_of_copy']:8.0%}{verdict}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", metavar="OP,OP", help="default: all operators")
    parser.add_argument("--dtypes", default="float32,bfloat16,float16,float64")
    parser.add_argument("--rows", default="2048,64")
    options = parser.parse_args()
    torch.set_num_threads(1)
    anyop.set_num_threads(1)
    print(
        f"{'case':17}{'dtype':10}{'rows':>5}{'anyop us':>10}{'median':>10}"
        f"{'torch us':>10}{'ratio':>8}{'median':>8}{'of copy':>8}"
    )
    results = []
    with torch.no_grad():
        for rows in map(int, options.rows.split(",")):
            for dtype in options.dtypes.split(","):
                found = measure(
                    dtype, rows, options.rounds, set(filter(None, options.only.split(",")))
                )
                for result in found:
                    show(result)
                results += found
    print("written to", write("kernels", results, environment(anyop, np, torch)))


if __name__ == "__main__":
    main()
