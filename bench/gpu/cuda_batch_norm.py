# SPDX-License-Identifier: Apache-2.0
"""Times a batch norm's forward and backward on CUDA, channels last, beside torch's own: local and synchronised.

    python bench/gpu/cuda_batch_norm.py [--only 32x56x56x64] [--rounds 15] [--dtype bfloat16]
    python bench/gpu/cuda_batch_norm.py --check         # small sizes, results alone, also on the CPU

Sides: anyop's five operators in a row, as anyop.torch.nn.SyncBatchNorm calls them; torch's native_batch_norm
and cuDNN's, each with its backward; torch's operators of SyncBatchNorm; with --compile torch.compile of the formula.
Parameters are float32. Each side is captured into a CUDA graph and checked against float64; then all take turns, each
after 20 ms of idling with the second cache filled with other bytes. The share is of eight passes over a tensor of x's
size, ten with a residual and ReLU, and of its bits: what must move where nothing stays in the cache. What fails is left
out, and a line says so. One line of JSON for each side goes to bench/results/cuda_batch_norm.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda_products import paced_turns
from cuda_rows import FLUSH_BYTES, capture, ceiling, device
from harness import environment, write

try:
    import anyop
    import anyop.torch
    import torch
except ImportError as missing:
    torch = None
    MISSING = missing

# ResNet-50's images of 64, in rows of 56, 28, 14 and 7; and one of a detector.
SHAPES = ["64x56x56x64", "64x56x56x256", "64x28x28x512", "64x14x14x1024", "64x7x7x2048", "2x200x304x256"]  # fmt: skip
SMALL = ["2x3x5x8", "1x4x4x40"]
EPS, MOMENTUM = 1e-5, 0.1
WRONG: list[str] = []
# Roundings of a result and of the gradient behind it, of numbers up to 8; sums of up to 2^20 in float32.
LIMITS = {"bfloat16": 2**-4, "float16": 2**-7, "float32": 1e-3}


def formula(x: Any, weight: Any, bias: Any, residual: Any, relu: bool) -> Any:
    var, mean = torch.var_mean(x, (0, 1, 2), correction=0)
    out = (x - mean) * (var + EPS).rsqrt() * weight + bias
    out = out if residual is None else out + residual
    return out.relu() if relu else out


def by_formula(compute, grad, x, weight, bias, residual, relu) -> tuple:
    """out, grad_x, grad_weight, grad_bias."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    with torch.enable_grad():
        out = compute(*leaves, residual, relu)
        return out.detach(), *torch.autograd.grad(out, leaves, grad)


def by_anyop(grad, x, weight, bias, residual, relu, running) -> tuple:
    call: Any = anyop
    mean, var = call.batch_norm_stats_channels_last(x)
    count = torch.full((1,), x.numel() // len(mean), dtype=torch.float32, device=x.device)
    mean, _, rstd = call.batch_norm_combine(
        mean[None], var[None], count, *running, MOMENTUM, eps=EPS
    )
    out, mask = call.batch_norm_apply_channels_last(
        x, mean, rstd, weight, bias, residual, relu=relu, mask=None if relu else False
    )
    *sums, of_weight, of_bias = call.batch_norm_reduce_channels_last(
        grad, x, mean, rstd, weight, mask
    )
    of_x, _ = call.batch_norm_backward_channels_last(
        grad, x, mean, rstd, weight, mask, *sums, count,
        grad_residual=None if residual is not None else False,
    )  # fmt: skip
    return out, of_x, of_weight, of_bias


def first_order(tensor: Any) -> Any:
    """(N, H, W, C) as torch's operators take it: (N, C, H, W) in the memory format channels_last."""
    return tensor.permute(0, 3, 1, 2)


def finished(out: Any, residual: Any, relu: bool) -> Any:
    out = out if residual is None else out.add_(first_order(residual))
    return out.relu_() if relu else out


def by_native(cudnn, grad, x, weight, bias, residual, relu, running) -> tuple:
    x, grad = first_order(x), first_order(grad)
    if cudnn:
        made = torch.cudnn_batch_norm(x, weight, bias, *running, True, MOMENTUM, EPS)
    else:
        made = torch.native_batch_norm(x, weight, bias, *running, True, MOMENTUM, EPS)
    out = finished(made[0], residual, relu)
    grad = torch.ops.aten.threshold_backward(grad, out, 0) if relu else grad
    if cudnn:
        grads = torch.ops.aten.cudnn_batch_norm_backward(
            x, grad, weight, *running, made[1], made[2], EPS, made[3]
        )
    else:
        grads = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, *running, made[1], made[2], True, EPS, [True] * 3
        )
    return last_order(out), last_order(grads[0]), *grads[1:]


def last_order(tensor: Any) -> Any:
    return tensor.permute(0, 2, 3, 1)


def by_torch_synchronised(grad, x, weight, bias, residual, relu, running) -> tuple:
    """The operators of torch.nn.SyncBatchNorm, without messages."""
    x, grad = first_order(x), first_order(grad)
    mean, rstd = torch.batch_norm_stats(x, EPS)
    count = torch.full((1,), x.numel() // len(mean), dtype=mean.dtype, device=x.device)
    mean, rstd = torch.batch_norm_gather_stats_with_counts(
        x, mean[None], rstd[None], *running, MOMENTUM, EPS, count
    )
    out = finished(torch.batch_norm_elemt(x, weight, bias, mean, rstd, EPS), residual, relu)
    grad = torch.ops.aten.threshold_backward(grad, out, 0) if relu else grad
    sum_dy, sum_dy_xmu, of_weight, of_bias = torch.batch_norm_backward_reduce(
        grad, x, mean, rstd, weight, True, True, True
    )
    of_x = torch.batch_norm_backward_elemt(
        grad, x, mean, rstd, weight, sum_dy, sum_dy_xmu, count.to(torch.int32)
    )
    return last_order(out), last_order(of_x), of_weight, of_bias


def cases(options: argparse.Namespace, where: str) -> Iterator[tuple[str, tuple, bool]]:
    shapes = options.only.split(",") if options.only else SMALL if options.check else SHAPES
    for shape in shapes:
        sizes = tuple(map(int, shape.split("x")))
        generator = torch.Generator(where).manual_seed(0)

        def normal(*size: int, generator: Any = generator) -> Any:
            return torch.randn(*size, generator=generator, device=where)

        dtype, C = getattr(torch, options.dtype), sizes[-1]
        grad, x, more = (normal(*sizes).to(dtype) for _ in range(3))
        weight, bias = normal(C).abs() + 0.5, normal(C)
        for name, residual, relu in (("", None, False), (", residual, relu", more, True)):
            yield shape + name, (grad, x + 1, weight, bias, residual), relu


def sides_of(given: tuple, relu: bool, compiles: bool) -> dict[str, Callable]:
    C = given[1].shape[-1]

    def running() -> tuple:
        return tuple(
            torch.full((C,), value, dtype=torch.float32, device=given[1].device) for value in (0.0, 1.0)
        )  # fmt: skip

    found = {
        "anyop": partial(by_anyop, *given, relu, running()),
        "torch": partial(by_native, False, *given, relu, running()),
    }
    if given[1].is_cuda:
        found["torch, cudnn"] = partial(by_native, True, *given, relu, running())
        found["torch, synchronised"] = partial(by_torch_synchronised, *given, relu, running())
    if compiles:
        torch._dynamo.reset()
        found["torch.compile"] = partial(
            by_formula, torch.compile(formula, dynamic=False), *given, relu
        )
    return found


def is_right(shape: str, dtype: str, side: str, results: tuple, exact: tuple, twice: tuple) -> bool:  # fmt: skip
    problem, limit = "", LIMITS[dtype]
    for name, found, wanted in zip(
        ("out", "grad_x", "grad_weight", "grad_bias"), results, exact, strict=True
    ):
        # Sums are as exact as the root of what they sum; where ReLU cuts off a 0 but for rounding, one element differs.
        errors = (found.double() - wanted).abs() / (1 + wanted.abs())
        if "weight" in name or "bias" in name:
            errors = errors / (results[1].numel() / len(found)) ** 0.5
        if not errors.square().mean().sqrt().item() <= limit:
            problem = f"{name}: error {errors.square().mean().sqrt():.1e}, limit {limit:.1e}"
    if side == "anyop" and not problem and not all(map(torch.equal, results, twice)):
        problem = "other bits the second time"
    if problem:
        WRONG.append(f"{shape} {dtype} by {side}: {problem}")
        print("WRONG:", WRONG[-1], flush=True)
    return not problem


def exactly(given: tuple, relu: bool) -> tuple:
    wide = (None if tensor is None else tensor.double() for tensor in given)
    return by_formula(formula, *wide, relu)


def moved_bytes(x: Any, relu: bool) -> float:
    """Forward reads x twice and writes out; backward reads x and grad twice and writes grad_x. And a residual, bits."""
    whole = x.numel() * x.element_size()
    return whole * 8 + relu * (2 * whole + 3 * x.numel() / 8)


def leave_out(shape: str, side: str, error: Exception) -> None:
    text = (str(error).strip().split("\n") or [""])[0][:160]
    print(f"left out: {shape} by {side}: {type(error).__name__}: {text}", flush=True)
    if side == "anyop":
        WRONG.append(f"{shape} by {side}: {text}")


def measure(
    shape: str, given: tuple, relu: bool, options: argparse.Namespace, flush: Any, limit: float
) -> Iterator[dict]:
    exact, graphs = exactly(given, relu), {}
    for side, call in sides_of(given, relu, options.compile).items():
        try:
            graph, out = capture(call)
            graph.replay()
            first = tuple(tensor.clone() for tensor in out)
            graph.replay()
            if is_right(shape, options.dtype, side, first, exact, out):
                graphs[side] = graph
        except Exception as error:
            leave_out(shape, side, error)
    times = paced_turns(graphs, options.rounds, flush)
    best = min((t for side, t in times.items() if side != "anyop"), default=None)
    for side, median in times.items():
        yield {
            "case": "batch norm, forward and backward", "shape": shape, "dtype": options.dtype,
            "side": side, "median_us": round(median, 2),
            "share_of_ceiling": round(moved_bytes(given[1], relu) / median / limit, 3),
            "of_best_peer": round(best / median, 3) if best else None,
        }  # fmt: skip


def check_all(options: argparse.Namespace) -> str | None:
    where = "cuda" if torch.cuda.is_available() else "cpu"
    for shape, given, relu in cases(options, where):
        exact = exactly(given, relu)
        for side, call in sides_of(given, relu, compiles=False).items():
            if is_right(shape, options.dtype, side, call(), exact, call()):
                print("right:", shape, side, flush=True)
    return "; ".join(WRONG) or None


def main() -> str | None:
    """What was wrong, if something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", metavar="NxHxWxC,...", help="default: ResNet-50's")
    parser.add_argument("--dtype", default="bfloat16", choices=list(LIMITS))
    parser.add_argument(
        "--compile", action="store_true", help="with torch.compile, some seconds for each"
    )
    parser.add_argument("--check", action="store_true", help="results of small calls alone")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    if torch is None:
        print(f"skipped: {MISSING}")
        return None
    with torch.no_grad():
        if options.check:
            return check_all(options)
        if not torch.cuda.is_available():
            print("skipped: there is no CUDA device that torch can use")
            return None
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        limit, rows = ceiling(options.rounds, flush), []
        print(f"ceiling {limit / 1e3:.0f} GB/s")
        for shape, given, relu in cases(options, "cuda"):
            for row in measure(shape, given, relu, options, flush, limit):
                beside = row["of_best_peer"] or float("nan")
                rate = f"{row['median_us']:10.2f} us{row['share_of_ceiling']:8.1%}"
                print(f"{shape:32}{row['side']:22}{rate}{beside:8.3f}", flush=True)
                rows.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
    if not options.dry:
        print("written to", write("cuda_batch_norm", rows, environment(anyop, torch) | device()))
    return "; ".join(WRONG) or None


if __name__ == "__main__":
    sys.exit(main())
