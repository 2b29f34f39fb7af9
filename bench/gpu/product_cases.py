# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions that cuda_products.py times: arguments, what peers call, results in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

try:
    import torch

    FP8 = torch.float8_e4m3fn
except ImportError:
    torch = FP8 = None

DENSE = [(8192, 28672, 4096), (8192, 4096, 14336), (8192, 10240, 8192), (4096, 7168, 2048)]
BLOCKS = [(4096, 7168, 16384), (4096, 4096, 7168), (4096, 24576, 1536), (4096, 7168, 2048)]
THIN = [(1, 28672, 4096), (16, 10240, 8192), (64, 28672, 8192)]
CONVOLUTIONS = [  # images, H = W, C, K, window, stride: ResNet-50's
    (64, 56, 64, 64, 3, 1), (64, 56, 64, 256, 1, 1), (64, 28, 128, 128, 3, 1),
    (64, 14, 256, 256, 3, 1), (64, 14, 1024, 2048, 1, 2), (64, 7, 512, 512, 3, 1),
]  # fmt: skip
FUSED = [(8192, 14336, 4096), (8192, 4096, 14336)]
GROUPED = 65536, 128, 2048, 1536  # rows, experts, K, N
CHECKED_ROWS = 128
ACTIVATIONS = {
    "relu": lambda x: x.relu(),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


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
        for dtype in (FP8, torch.int8):
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
            x, w = (self.normal(rows, k, dtype=FP8) for rows in (m, n))
            xs, ws = self.scales(k // 128, m).t(), self.scales(n // 128, k // 128)

            torch_call = partial(torch._scaled_mm, x, w.t(), xs, ws.t(), out_dtype=torch.bfloat16)
            yield self.case(
                "linear_fp8_block", m, n, k, x, w, peers={"torch": torch_call},
                call=partial(self.anyop.linear_fp8_block, x, w, xs, ws),
                exact=partial(blocks_exactly, x, w, xs, ws),
            )  # fmt: skip

    def grouped_linear(self) -> Iterator[Product]:
        T, E, k, n = GROUPED
        x, w = self.normal(T, k), self.normal(E, n, k)
        for name, offsets in self.offsets(T, E).items():
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

    def offsets(self, T: int, E: int) -> dict[str, Any]:
        """Of T rows in E segments."""
        skewed = torch.rand(E, generator=self.generator, device="cuda").pow(3).cumsum(0)
        ends = {"uniform": torch.arange(1, E + 1, device="cuda") / E, "skewed": skewed / skewed[-1]}
        return {
            name: torch.cat([shares.new_zeros(1), shares * T]).round().int()
            for name, shares in ends.items()
        }

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

    def linear_act(self) -> Iterator[Product]:
        for m, n, k in FUSED:
            for activation in ("relu", "gelu_tanh"):
                x, w, b = self.normal(m, k), self.normal(n, k) * k**-0.5, self.normal(n)

                def exact(x=x, w=w, b=b, activation=activation):
                    sums = x[:CHECKED_ROWS].double() @ w.double().t() + b.double()
                    return ACTIVATIONS[activation](sums)

                product = self.case(
                    "linear_act", m, n, k, x, w, exact=exact, peers=self.alone(x, w.t()),
                    call=partial(self.anyop.linear_act, x, w, b, None, activation),
                )  # fmt: skip
                product.shape += f", {activation}"
                yield product

    def linear_act_backward(self) -> Iterator[Product]:
        """Behind gelu by tanh; of the gradients grad_x is looked at."""
        for m, n, k in FUSED:
            g, x, w, pre = (self.normal(*size) for size in ((m, n), (m, k), (n, k), (m, n)))

            def ours(g=g, x=x, w=w, pre=pre):
                call: Any = self.anyop.linear_act_backward
                return call(g, x, w, pre, "gelu_tanh", grad_residual=False)[0]

            def exact(g=g, w=w, pre=pre):
                wide = pre[:CHECKED_ROWS].double().requires_grad_()
                (seen,) = torch.autograd.grad(
                    ACTIVATIONS["gelu_tanh"](wide), wide, g[:CHECKED_ROWS].double()
                )
                return seen @ w.double()

            yield self.twice("linear_act_backward", g, x, w, ours, exact)

    def linear_backward(self) -> Iterator[Product]:
        """All gradients; grad_x is looked at."""
        for m, n, k in FUSED:
            g, x, w = self.normal(m, n), self.normal(m, k), self.normal(n, k)

            def ours(g=g, x=x, w=w):
                return self.anyop.linear_backward(g, x, w)[0]

            def exact(g=g, w=w):
                return g[:CHECKED_ROWS].double() @ w.double()

            yield self.twice("linear_backward", g, x, w, ours, exact)

    def twice(
        self, operator: str, g: Any, x: Any, w: Any, ours: Callable, exact: Callable
    ) -> Product:
        """Two products: of a gradient with weight and with x."""

        def theirs():
            torch.mm(g.t(), x)
            return torch.mm(g, w)

        peers = {"torch, two products alone": theirs}
        product = self.case(
            operator, *g.shape, x.shape[1], x, w, call=ours, peers=peers, exact=exact
        )
        product.flops *= 2
        return product

    def linear_wgrad_accumulate(self) -> Iterator[Product]:
        for m, n, k in FUSED:
            g, x = self.normal(m, n), self.normal(m, k)
            total = torch.zeros(n, k, device="cuda")

            def ours(g=g, x=x, total=total):
                self.anyop.linear_wgrad_accumulate(x, g, total.zero_())
                return total

            def without_zeros(g=g, x=x, total=total):
                self.anyop.linear_wgrad_accumulate(x, g, total)
                return total

            def exact(g=g, x=x):
                return g[:, :CHECKED_ROWS].double().t() @ x.double()

            yield self.case(
                "linear_wgrad_accumulate", n, k, m, x, g, call=ours, exact=exact,
                peers=self.alone(g.t(), x) | {"anyop, what is timed alone": without_zeros},
            )  # fmt: skip

    def alone(self, *factors: Any) -> dict[str, Callable]:
        return {"torch, product alone": partial(torch.mm, *factors)}

    def grouped_linear_backward(self) -> Iterator[Product]:
        """All gradients but that of a bias; grad_x is looked at."""
        T, E, k, n = GROUPED
        g, x, w = self.normal(T, n), self.normal(T, k), self.normal(E, n, k)
        for name, offsets in self.offsets(T, E).items():
            ends, first = offsets[1:], int(offsets[1])

            def ours(offsets=offsets):
                call: Any = self.anyop.grouped_linear_backward
                return call(g, x, w, offsets, grad_bias=False)[0]

            def theirs(ends=ends):
                torch._grouped_mm(g.t(), x, offs=ends)
                return torch._grouped_mm(g, w, offs=ends)

            def exact(first=first):
                return g[: min(first, CHECKED_ROWS)].double() @ w[0].double()

            product = self.case(
                "grouped_linear_backward", T, n, k, x, w, call=ours, exact=exact,
                peers={"torch": theirs},
            )  # fmt: skip
            product.shape += f", {E} experts, {name}"
            product.flops *= 2
            yield product

    def grouped_linear_fp8_block(self) -> Iterator[Product]:
        E, rows, n, k = 4, 8192, 4096, 7168
        x, w = self.normal(E * rows, k, dtype=FP8), self.normal(E, n, k, dtype=FP8)
        xs, ws = self.scales(k // 128, E * rows).t(), self.scales(E, n // 128, k // 128)
        offsets = torch.arange(E + 1, device="cuda", dtype=torch.int32) * rows
        yield self.case(
            "grouped_linear_fp8_block", E * rows, n, k, x, w, peers={},
            call=partial(self.anyop.grouped_linear_fp8_block, x, w, xs, ws, offsets),
            exact=lambda: blocks_exactly(x, w[0], xs, ws[0]),
        )  # fmt: skip

    def grouped_linear_fp8_block_masked(self) -> Iterator[Product]:
        E, rows, n, k = 32, 64, 4096, 7168
        x, w = self.normal(E, rows, k, dtype=FP8), self.normal(E, n, k, dtype=FP8)
        xs, ws = self.scales(E, rows, k // 128), self.scales(E, n // 128, k // 128)
        counts = torch.full((E,), rows, device="cuda", dtype=torch.int32)

        def ours():
            masked = self.anyop.grouped_linear_fp8_block_masked
            return masked(x, w, xs, ws, counts).flatten(0, 1)

        product = self.case(
            "grouped_linear_fp8_block_masked", rows, n, k, x, w, call=ours, peers={},
            exact=lambda: blocks_exactly(x[0], w[0], xs[0], ws[0]),
        )  # fmt: skip
        product.shape, product.flops = f"{E}x{rows}x{n}x{k}", product.flops * E
        product.bytes += 2 * (E - 1) * rows * n
        yield product

    def linear_w4(self) -> Iterator[Product]:
        """4 bits, scales of 128, beside torch's kernel of 4 bits and its plain product."""
        n, k = 28672, 8192
        pairs = torch.randint(0, 256, (n, k // 2), generator=self.generator, device="cuda")
        stored = pairs.to(torch.uint8)
        weight, zero = self.anyop.w4_pack(stored, None, "plain")
        scale = self.normal(k // 128, n) * 0.02
        wide = self.anyop.w4_unpack(weight, scale, zero, 128)
        swapped = stored >> 4 | stored << 4  # torch's even factors lie high
        scale_and_zero = torch.stack([scale, torch.zeros_like(scale)], -1)

        @cache
        def packed():
            return torch.ops.aten._convert_weight_to_int4pack(swapped, 8)

        for m in (1, 16, 64, 4096):
            x = self.normal(m, k)

            def int4(x=x):
                return torch.ops.aten._weight_int4pack_mm(x, packed(), 128, scale_and_zero)

            product = self.case(
                "linear_w4", m, n, k, x, stored, peers={"torch": int4} | self.alone(x, wide.t()),
                call=partial(self.anyop.linear_w4, x, weight, scale, zero, None, 128),
                exact=lambda x=x: x[:CHECKED_ROWS].double() @ wide.double().t(),
            )  # fmt: skip
            product.bytes += 2 * scale.numel()
            yield product


def blocks_exactly(x: Any, w: Any, xs: Any, ws: Any) -> Any:
    """The first rows of x by w, scales of 128 and of 128 x 128 taken in."""
    wide = w.double() * ws.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    scales = xs[:CHECKED_ROWS].double().repeat_interleave(128, 1)
    return (x[:CHECKED_ROWS].double() * scales) @ wide.t()


OPERATORS = [
    "linear",
    "linear_act",
    "linear_backward",
    "linear_act_backward",
    "linear_wgrad_accumulate",
    "linear_gated",
    "linear_w8a8",
    "linear_fp8_block",
    "linear_w4",
    "grouped_linear",
    "grouped_linear_backward",
    "grouped_linear_fp8_block",
    "grouped_linear_fp8_block_masked",
    "conv_bias_act",
    "conv_bias_act_backward",
]
