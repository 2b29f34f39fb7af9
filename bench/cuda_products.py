# SPDX-License-Identifier: Apache-2.0
"""Times matrix products and convolutions on CUDA against torch's, in TFLOP/s and as shares of the bytes' ceiling.

    python bench/cuda_products.py [--only linear,linear_w8a8] [--rounds 15] [--implementations cuda_sm90,cuda_tiles]

Each side is captured into a CUDA graph, checked against float64 in its first rows, and run twice for the same bits;
then all sides take turns, each after 20 ms of idling (so that the clocks are the same) with the second cache filled
with other bytes. A product of many rows is judged by its TFLOP/s, one of few by the bytes that it must read and
write, over its time without an empty kernel's where that is under 60 us. One line of JSON for each side goes to
bench/results/cuda_products.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from cuda_rows import FLUSH_BYTES, SHORT_US, capture, ceiling, device, left_out
from harness import environment, write

try:
    import torch
except ImportError:
    torch = None

DENSE = [(8192, 28672, 4096), (8192, 4096, 14336), (8192, 10240, 8192), (4096, 7168, 2048)]
BLOCKS = [(4096, 7168, 16384), (4096, 4096, 7168), (4096, 24576, 1536), (4096, 7168, 2048)]
THIN = [(1, 28672, 4096), (16, 10240, 8192), (64, 28672, 8192)]
CONVOLUTIONS = [  # images, H = W, C, K, window, stride: ResNet-50's
    (64, 56, 64, 64, 3, 1), (64, 56, 64, 256, 1, 1), (64, 28, 128, 128, 3, 1),
    (64, 14, 256, 256, 3, 1), (64, 14, 1024, 2048, 1, 2), (64, 7, 512, 512, 3, 1),
]  # fmt: skip
CHECKED_ROWS = 128
WRONG: list[str] = []


@dataclass
class Product:
    """One case: `peers` are other projects' calls of the same; `exact` gives the first rows in float64."""

    operator: str
    shape: str
    dtype: str
    call: Callable
    peers: dict[str, Callable]
    exact: Callable
    flops: float
    bytes: float
    is_thin: bool
    limit: float  # of what an error has beyond rounding, over the root of the mean square


class Maker:
    def __init__(self, anyop: Any):
        self.anyop = anyop
        self.generator = torch.Generator("cuda").manual_seed(0)

    def normal(self, *shape: int, dtype: Any = None) -> Any:
        numbers = torch.randn(*shape, generator=self.generator, device="cuda")
        if dtype == torch.int8:
            return (numbers * 32).clamp(-127, 127).to(dtype)
        return numbers.to(dtype or torch.bfloat16)

    def scales(self, *shape: int) -> Any:
        return torch.rand(*shape, generator=self.generator, device="cuda") + 0.5

    def case(
        self, operator: str, m: int, n: int, k: int, x: Any, weight: Any, **others: Any
    ) -> Product:
        # Hopper adds products of 8-bit floats with 14 bits: torch's largest error was 0.062, ours the same.
        limit = 0.1 if operator == "linear_w8a8" and x.dtype != torch.int8 else 0.03
        read = sum(t.numel() * t.element_size() for t in (x, weight))
        return Product(
            operator, f"{m}x{n}x{k}", str(x.dtype)[6:], flops=2.0 * m * n * k, bytes=read + 2 * m * n,
            is_thin=m <= 64, limit=limit, **others,
        )  # fmt: skip

    def linear(self) -> Iterator[Product]:
        for m, n, k in DENSE + THIN:
            x, w = self.normal(m, k), self.normal(n, k)
            yield self.case(
                "linear", m, n, k, x, w, call=partial(self.anyop.linear, x, w),
                peers={"torch": lambda x=x, w=w: torch.mm(x, w.t())},
                exact=lambda x=x, w=w: x[:CHECKED_ROWS].double() @ w.double().t(),
            )  # fmt: skip

    def linear_gated(self) -> Iterator[Product]:
        for m, n, k in DENSE:
            x, w = self.normal(m, k) * 0.1, self.normal(n, k) * 0.1

            def exact(x=x, w=w):
                gate, up = (x[:CHECKED_ROWS].double() @ w.double().t()).chunk(2, -1)
                return torch.nn.functional.silu(gate) * up

            yield self.case(
                "linear_gated", m, n, k, x, w, call=partial(self.anyop.linear_gated, x, w),
                peers={"torch, product alone": lambda x=x, w=w: torch.mm(x, w.t())}, exact=exact,
            )  # fmt: skip

    def linear_w8a8(self) -> Iterator[Product]:
        for dtype in (torch.float8_e4m3fn, torch.int8):
            for m, n, k in DENSE + THIN:
                x, w = self.normal(m, k, dtype=dtype), self.normal(n, k, dtype=dtype)
                yield self.scaled(x, w, self.scales(m), self.scales(n))
                if dtype != torch.int8:
                    yield self.scaled(x, w, self.scales(1)[0], self.scales(1)[0])

    def scaled(self, x: Any, w: Any, xs: Any, ws: Any) -> Product:
        """With scales of all rows, or one for each operand."""
        (m, k), n, peers = x.shape, len(w), {}
        padded = x if m >= 16 else torch.cat([x.view(torch.uint8)] * 16).view(x.dtype)
        rows = xs if m >= 16 or not xs.ndim else xs.repeat(16)
        if x.dtype != torch.int8:
            scales = (rows[:, None], ws[None]) if xs.ndim else (xs, ws)
            fp8 = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)
            peers["torch"] = partial(fp8, padded, w.t(), *scales)
        elif m > 16:
            peers["torch, product alone"] = partial(torch._int_mm, x, w.t())

        def exact() -> Any:
            sums = x[:CHECKED_ROWS].double() @ w.double().t()
            return sums * xs.double().reshape(-1, 1)[:CHECKED_ROWS] * ws.double()

        return self.case(
            "linear_w8a8", m, n, k, x, w, peers=peers, exact=exact,
            call=partial(self.anyop.linear_w8a8, x, w, xs, ws),
        )  # fmt: skip

    def linear_fp8_block(self) -> Iterator[Product]:
        for m, n, k in [*BLOCKS, (64, 7168, 16384), (16, 7168, 16384)]:
            x, w = (self.normal(rows, k, dtype=torch.float8_e4m3fn) for rows in (m, n))
            xs, ws = self.scales(k // 128, m).t(), self.scales(n // 128, k // 128)

            def exact(x=x, w=w, xs=xs, ws=ws):
                wide = w.double() * ws.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
                return (
                    x[:CHECKED_ROWS].double() * xs[:CHECKED_ROWS].double().repeat_interleave(128, 1)
                ) @ wide.t()

            torch_call = partial(torch._scaled_mm, x, w.t(), xs, ws.t(), out_dtype=torch.bfloat16)
            yield self.case(
                "linear_fp8_block", m, n, k, x, w, peers={"torch": torch_call}, exact=exact,
                call=partial(self.anyop.linear_fp8_block, x, w, xs, ws),
            )  # fmt: skip

    def grouped_linear(self) -> Iterator[Product]:
        T, E, k, n = 65536, 128, 2048, 1536
        x, w = self.normal(T, k), self.normal(E, n, k)
        skewed = torch.rand(E, generator=self.generator, device="cuda").pow(3).cumsum(0)
        ends = {"uniform": torch.arange(1, E + 1, device="cuda") / E, "skewed": skewed / skewed[-1]}
        for name, shares in ends.items():
            offsets = torch.cat([shares.new_zeros(1), shares * T]).round().int()
            first = int(offsets[1])

            def exact(first=first):
                return x[: min(first, CHECKED_ROWS)].double() @ w[0].double().t()

            product = self.case(
                "grouped_linear", T, n, k, x, w, exact=exact,
                call=partial(self.anyop.grouped_linear, x, w, offsets),
                peers={"torch": partial(torch._grouped_mm, x, w.transpose(1, 2), offs=offsets[1:])},
            )  # fmt: skip
            product.shape += f", {E} experts, {name}"
            yield product

    def conv_bias_act(self) -> Iterator[Product]:
        for size in CONVOLUTIONS:
            x, w, b, steps, images, windows = self.convolution(*size)
            scale, y = self.normal(len(b)), torch.conv2d(images, windows, None, *steps)
            residual = self.normal(*y.permute(0, 2, 3, 1).shape)
            s, shift = (t.view(1, -1, 1, 1) for t in (scale, b))
            added = residual.permute(0, 3, 1, 2)

            def with_bias(images=images, windows=windows, b=b, steps=steps):
                if images.dtype == torch.float64:
                    return torch.conv2d(images, windows, b, *steps).relu().permute(0, 2, 3, 1)
                pairs = [steps[0]] * 2, [steps[1]] * 2, [1, 1]
                return torch.cudnn_convolution_relu(images, windows, b, *pairs, 1).permute(
                    0, 2, 3, 1
                )

            def with_all(
                images=images, windows=windows, s=s, shift=shift, added=added, steps=steps
            ):
                y = torch.conv2d(images, windows, None, *steps)
                return (y * s + shift + added).relu().permute(0, 2, 3, 1)

            one = images[:1].double(), windows.double()
            kinds = {
                "bias, relu": (None, None, with_bias, {"b": b.double()}),
                "scale, bias, residual, relu": (
                    scale, residual, with_all,
                    {"s": s.double(), "shift": shift.double(), "added": added[:1].double()},
                ),
            }  # fmt: skip
            for kind, (factor, more, theirs, wide) in kinds.items():
                product = self.case(
                    "conv_bias_act", y.numel() // len(b), len(b), w[0].numel(), x, w,
                    call=partial(self.anyop.conv_bias_act, x, w, factor, b, None, more, *steps),
                    peers={"torch": theirs}, exact=partial(theirs, *one, **wide),
                )  # fmt: skip
                product.shape += f", {kind}"
                yield product

    def conv_bias_act_backward(self) -> Iterator[Product]:
        """All gradients; grad_x is looked at."""
        for size in CONVOLUTIONS:
            x, w, b, steps, images, windows = self.convolution(*size)
            out = self.anyop.conv_bias_act(x, w, None, b, None, None, *steps)
            grad = self.normal(*out.shape)
            turned = [t.permute(0, 3, 1, 2) for t in (grad, out)]

            def theirs(grad=turned[0], out=turned[1], images=images, windows=windows, steps=steps):
                seen = torch.ops.aten.threshold_backward(grad, out, 0)
                return torch.ops.aten.convolution_backward(
                    seen, images, windows, [windows.shape[0]], [steps[0]] * 2, [steps[1]] * 2,
                    [1, 1], False, [0, 0], 1, [True, True, True],
                )[0].permute(0, 2, 3, 1)  # fmt: skip

            def ours(grad=grad, x=x, w=w, out=out, steps=steps):
                call: Any = self.anyop.conv_bias_act_backward
                return call(grad, x, w, None, out, *steps, grad_residual=False)[0]

            one = [t[:1].double() for t in (*turned, images)]
            product = self.case(
                "conv_bias_act_backward", out.numel() // len(b), len(b), w[0].numel(), x, w,
                call=ours, peers={"torch": theirs}, exact=partial(theirs, *one, windows.double()),
            )  # fmt: skip
            product.flops *= 2
            yield product

    def convolution(self, N: int, H: int, C: int, K: int, R: int, stride: int) -> tuple:
        x, w, b = self.normal(N, H, H, C), self.normal(K, R, R, C) * 0.1, self.normal(K)
        return x, w, b, (stride, R // 2), x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)


OPERATORS = [
    "linear",
    "linear_gated",
    "linear_w8a8",
    "linear_fp8_block",
    "grouped_linear",
    "conv_bias_act",
    "conv_bias_act_backward",
]


def is_right(product: Product, side: str, out: Any, twice: Any) -> bool:
    exact = product.exact()
    if "alone" in side:  # another result
        return True
    found = out[: len(exact)].double()
    beyond = (found - exact).abs() - exact.abs() * 2**-8  # a result's own rounding, twice
    worst = (beyond.max() / exact.square().mean().sqrt()).item()
    problem = "" if worst <= product.limit else f"error {worst:.1e}, limit {product.limit:.1e}"
    if not problem and side.startswith("anyop") and not torch.equal(out, twice):
        problem = "other bits the second time"
    if problem:
        text = f"{product.operator} {product.shape} {product.dtype} by {side}: {problem}"
        print("WRONG:", text, flush=True)
        WRONG.append(text)
    return not problem


def paced_turns(graphs: dict[str, Any], rounds: int, flush: Any) -> dict[str, float]:
    """The median in microseconds of each side's replays."""
    pairs: dict[str, list] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            time.sleep(0.02)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(4):  # the CPU is ahead of the device again
                flush.zero_()
            begin.record()
            graph.replay()
            end.record()
            pairs[name].append((begin, end))
    torch.cuda.synchronize()
    return {n: statistics.median(b.elapsed_time(e) * 1e3 for b, e in p) for n, p in pairs.items()}


def sides_of(
    product: Product, anyop: Any, implementations: list[str]
) -> Iterator[tuple[str, Callable, Any]]:
    yield "anyop", product.call, contextlib.nullcontext()
    for name in implementations:
        if name in anyop.backends(product.operator):
            yield f"anyop {name}", product.call, anyop.use(name)
    for name, call in product.peers.items():
        yield name, call, contextlib.nullcontext()


def measure(
    product: Product, anyop: Any, options: argparse.Namespace, flush, limit, idle_us
) -> Iterator[dict]:
    graphs = {}
    for side, call, context in sides_of(product, anyop, options.implementations.split(",")):
        with left_out(side, product), context:
            graph, out = capture(call)
            graph.replay()
            first = out.clone()
            graph.replay()
            if is_right(product, side, first, out):
                graphs[side] = graph
    times = paced_turns(graphs, options.rounds, flush)
    best = min((t for side, t in times.items() if not side.startswith("anyop")), default=None)
    for side, median in times.items():
        busy = median - idle_us if median < SHORT_US else median
        yield {
            "case": product.operator, "shape": product.shape, "dtype": product.dtype, "side": side,
            "median_us": round(median, 2), "tflops": round(product.flops / median / 1e6, 1),
            "share_of_ceiling": round(product.bytes / busy / limit, 3),
            "of_best_peer": round(best / median, 3) if best else None,
        }  # fmt: skip


def show(row: dict, is_thin: bool) -> None:
    rate = f"{row['share_of_ceiling']:8.1%}" if is_thin else f"{row['tflops']:6.0f} TF"
    beside = f"{row['of_best_peer']:8.3f}" if row["of_best_peer"] else ""
    print(f"{row['case']:18}{row['shape']:>38} {row['dtype']:14}{row['side']:22}{row['median_us']:10.2f}{rate}{beside}",
          flush=True)  # fmt: skip


def main() -> str | None:
    """What was wrong, if something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(OPERATORS), metavar="OP,OP")
    parser.add_argument("--implementations", default="cuda,cuda_sm90,cuda_tiles,cuda_tiles_sm90")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return None
    import anyop
    import anyop.torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, one = ceiling(options.rounds, flush), torch.zeros(1, device="cuda")
    idle_us = paced_turns({"": capture(lambda: one.add_(0))[0]}, options.rounds, flush)[""]
    print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
    rows = []
    maker = Maker(anyop)
    for name in options.only.split(","):
        if not hasattr(anyop, name):
            print(f"left out: {name}: no such operator")
            continue
        for product in getattr(maker, name)():
            for row in measure(product, anyop, options, flush, limit, idle_us):
                show(row, product.is_thin)
                rows.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
    where = environment(anyop, torch) | device() | {"idle_us": round(idle_us, 2)}
    print("written to", write("cuda_products", rows, where))
    return "; ".join(WRONG) or None


if __name__ == "__main__":
    sys.exit(main())
