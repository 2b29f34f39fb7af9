# SPDX-License-Identifier: Apache-2.0
"""Times what trains on the CPU beside torch: batch norm, group norm, steps of optimizers, norms of gradients.

    python bench/cpu/training.py [--only batch_norm,adam] [--dtypes float32] [--threads 2] [--rounds 15] [--cpu-time]

Each result is compared with torch's first; then both take turns. torch's side of an optimizer is its fused one where it
has that, else its foreach one. One line of JSON for each case goes to bench/results/training.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import torch
from harness import beside_torch, beside_torch_options, environment, write
from torch.nn import functional

EPS, MOMENTUM = 1e-5, 0.1
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
IMAGES = [(32, 64, 56), (32, 256, 28), (32, 1024, 14), (2, 256, 200)]  # N, C, H = W
LISTS = [
    ("20 x 1,048,576", [1 << 20] * 20),
    ("146 of a small net", [64, 64 * 64, 64] * 48 + [4096] * 2),
]
Case = tuple[str, str, Callable, Callable]  # what, sizes, ours, torch's
native = torch.ops.aten


def batch_norms(dtype: torch.dtype) -> Iterator[Case]:
    """Training, as SyncBatchNorm of one process; torch's by native_batch_norm."""
    for N, C, H in IMAGES:
        weight, bias = torch.rand(C) + 0.5, torch.randn(C)
        for order in ("NCHW", "NHWC"):
            form = torch.channels_last if order == "NHWC" else torch.contiguous_format
            x, grad = (torch.randn(N, C, H, H).to(dtype, memory_format=form) for _ in range(2))
            size = f"N={N} C={C} H={H} {order}"
            yield "batch_norm", size, *batch_norm(x, weight, bias)
            yield "batch_norm_backward", size, *batch_norm_backward(grad, x, weight, bias)


def by_order(name: str, x: torch.Tensor) -> tuple[Callable, Callable]:
    """An operator for this layout, and how a tensor is turned for it (back, too: of a result of four dimensions)."""
    if x.is_contiguous():
        return getattr(anyop, name), lambda t: t
    last = {"group_norm_backward": "group_norm_channels_last_backward"}
    return getattr(anyop, last.get(name, f"{name}_channels_last")), lambda t: t.permute(0, 2, 3, 1)


def back(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out if x.is_contiguous() else out.permute(0, 3, 1, 2)


def statistics(x: torch.Tensor, running: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    C = x.shape[1]
    stats, turned = by_order("batch_norm_stats", x)
    mean, var = stats(turned(x))
    count = torch.full((1,), x.numel() // C, dtype=torch.float32)
    mean, _, rstd = anyop.batch_norm_combine(
        mean[None], var[None], count, *running, MOMENTUM, eps=EPS
    )
    return mean, rstd


def batch_norm(x, weight, bias) -> tuple[Callable, Callable]:
    running = [torch.zeros(x.shape[1]), torch.ones(x.shape[1])]
    apply, turned = by_order("batch_norm_apply", x)

    def ours():
        mean, rstd = statistics(x, running)
        return back(x, apply(turned(x), mean, rstd, weight, bias, mask=False)[0])

    def theirs():
        return torch.native_batch_norm(x, weight, bias, *running, True, MOMENTUM, EPS)[0]

    return ours, theirs


def batch_norm_backward(grad, x, weight, bias) -> tuple[Callable, Callable]:
    running = [torch.zeros(x.shape[1]), torch.ones(x.shape[1])]
    mean, rstd = statistics(x, running)
    saved = torch.native_batch_norm(x, weight, bias, *running, True, MOMENTUM, EPS)[1:]
    count = torch.full((1,), x.numel() // x.shape[1], dtype=torch.float32)
    reduce, turned = by_order("batch_norm_reduce", x)
    backward, _ = by_order("batch_norm_backward", x)

    def ours():
        given = turned(grad), turned(x), mean, rstd, weight, None
        sums = reduce(*given)[:2]
        return back(x, backward(*given, *sums, count, grad_residual=False)[0])

    def theirs():
        return native.native_batch_norm_backward(
            grad, x, weight, *running, *saved, True, EPS, [True] * 3
        )[0]

    return ours, theirs


def group_norms(dtype: torch.dtype) -> Iterator[Case]:
    """Of diffusion models; torch's gradient of the activation is its own."""
    for N, C, H in ((4, 320, 64), (4, 640, 32), (4, 1280, 16)):
        weight, bias = (torch.rand(C) + 0.5).to(dtype), torch.randn(C).to(dtype)
        for order in ("NCHW", "NHWC"):
            form = torch.channels_last if order == "NHWC" else torch.contiguous_format
            x, grad = (torch.randn(N, C, H, H).to(dtype, memory_format=form) for _ in range(2))
            size = f"N={N} C={C} H={H} {order}"
            for activation in ("none", "silu"):
                what = "group_norm" + ("" if activation == "none" else " silu")
                yield what, size, *group_norm(x, weight, bias, activation)
            yield "group_norm_backward", size, *group_norm_backward(grad, x, weight, bias)


def group_norm(x, weight, bias, activation) -> tuple[Callable, Callable]:
    call, turned = by_order("group_norm", x)

    def ours():
        return back(x, call(turned(x), 32, weight, bias, EPS, activation=activation)[0])

    def theirs():
        out = functional.group_norm(x, 32, weight, bias, EPS)
        return out if activation == "none" else functional.silu(out, inplace=True)

    return ours, theirs


def group_norm_backward(grad, x, weight, bias) -> tuple[Callable, Callable]:
    N, C, H, _ = x.shape
    mean, rstd = anyop.group_norm(x.contiguous(), 32, weight, bias, EPS)[1:]
    call, turned = by_order("group_norm_backward", x)
    saved = native.native_group_norm(x, weight, bias, N, C, H * H, 32, EPS)[1:]

    def theirs():
        return native.native_group_norm_backward(
            grad, x, *saved, weight, N, C, H * H, 32, [True] * 3
        )[0]

    return lambda: back(x, call(turned(grad), turned(x), mean, rstd, 32, weight, bias)[0]), theirs


def lists(dtype: torch.dtype) -> Iterator[Case]:
    """A step changes its parameters: each side has its own, and both begin alike."""
    for name, sizes in LISTS:
        for what, ours, theirs in (
            ("adam", adam, (torch.optim.AdamW, {"fused": True})),
            ("sgd", sgd, (torch.optim.SGD, {"momentum": 0.9, "fused": True})),
            ("adagrad", adagrad, (torch.optim.Adagrad, {"fused": True})),
        ):
            start = [torch.randn(n).to(dtype) for n in sizes]
            grads = [torch.randn(n).to(dtype) for n in sizes]
            yield what, name, ours(start, grads), torchs_step(start, grads, *theirs)
        yield "clip_grad_norm", name, *clipped(grads)
        yield "scale", name, *scaled(grads)


def cloned(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.clone() for t in tensors]


def adam(start, grads) -> Callable:
    p, m, v = cloned(start), *([torch.zeros_like(t) for t in start] for _ in range(2))
    step = torch.zeros(1)

    def run():
        step.add_(1)
        anyop.multi_tensor_adam(p, grads, m, v, 1e-3, step, weight_decay=0.01)
        return p[0]

    return run


def sgd(start, grads) -> Callable:
    p, buffer, step = cloned(start), [torch.zeros_like(t) for t in start], torch.zeros(1)

    def run():
        step.add_(1)
        anyop.multi_tensor_sgd(p, grads, 1e-3, buffer, step, momentum=0.9)
        return p[0]

    return run


def adagrad(start, grads) -> Callable:
    p, squares = cloned(start), [torch.zeros_like(t) for t in start]

    def run():
        anyop.multi_tensor_adagrad(p, grads, squares, 1e-3)
        return p[0]

    return run


def torchs_step(start, grads, kind, options) -> Callable:
    p = [torch.nn.Parameter(t) for t in cloned(start)]
    for parameter, grad in zip(p, grads, strict=True):
        parameter.grad = grad
    optimizer = kind(p, lr=1e-3, **options)

    def run():
        optimizer.step()
        return p[0].detach()

    return run


def clipped(grads) -> tuple[Callable, Callable]:
    g = cloned(grads)
    p = [torch.nn.Parameter(t) for t in cloned(grads)]
    for parameter, grad in zip(p, cloned(grads), strict=True):
        parameter.grad = grad

    def ours():
        anyop.multi_tensor_clip_grad_norm(g, 1e-3)
        return g[0]

    def theirs():
        torch.nn.utils.clip_grad_norm_(p, 1e-3, foreach=True)
        return p[0].grad

    return ours, theirs


def scaled(grads) -> tuple[Callable, Callable]:
    """Gradients unscaled, with a look whether all are finite."""
    ours_g, theirs_g = cloned(grads), cloned(grads)
    found, inverse, scale = torch.zeros(1), torch.ones(1), torch.ones(1)

    def ours():
        anyop.multi_tensor_scale(ours_g, ours_g, scale, found)
        return ours_g[0]

    def theirs():
        torch._amp_foreach_non_finite_check_and_unscale_(theirs_g, found, inverse)
        return theirs_g[0]

    return ours, theirs


FAMILIES = {"batch_norm": batch_norms, "group_norm": group_norms, "lists": lists}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--cpu-time", action="store_true", help="of one thread: where others use the machine, too"
    )
    options = beside_torch_options(parser)
    wanted, rows = [w for w in options.only.split(",") if w], []
    if options.cpu_time and options.threads != "1":
        parser.error("--cpu-time is that of --threads 1")
    clock = time.thread_time_ns if options.cpu_time else time.perf_counter_ns
    kind = {"clock": "cpu"} if options.cpu_time else {}
    with torch.no_grad():
        for threads in map(int, options.threads.split(",")):
            torch.set_num_threads(threads)
            anyop.set_num_threads(threads)
            for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
                for family in FAMILIES.values():
                    for what, sizes, ours, theirs in family(dtype):
                        if wanted and not what.startswith(tuple(wanted)):
                            continue
                        torch.manual_seed(0)
                        limit = TOLERANCE[dtype] * max(theirs().double().abs().max().item(), 1)
                        ours()  # as often as theirs: a step changes what it is given
                        row = beside_torch(what, sizes, ours, theirs, limit, options.rounds, clock)
                        rows.append({"what": what, "threads": threads} | kind | row)
    if not options.dry:
        print("written to", write("training", rows, environment(anyop, torch)).name)


if __name__ == "__main__":
    main()
