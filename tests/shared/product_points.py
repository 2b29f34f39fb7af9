# SPDX-License-Identifier: Apache-2.0
"""Products of every size that decides how one is cut, in whole numbers: sums are exact, and results rounded once.

Cases for tests on the CPU and on CUDA: the operator, its call by torch's tensors, and what must come out in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyop
import torch
from drawn import few
from torch import Tensor

ROWS = [*range(18), 63, 64, 65, 127, 128, 129]
SIDES = [0, 1, 8, 24, 136]
MANY, LONG = 8192, 65_536
FLOATS = ["float32", "float16", "bfloat16", "float64"]
BYTES = ["int8", "float8_e4m3fn"]
HALVES = ["float32", "float16", "bfloat16"]


class Maker:
    """Whole numbers on a device, `shift` elements behind an aligned start."""

    def __init__(self, device: str, dtype: str, shift: int) -> None:
        self.device, self.dtype, self.shift = device, getattr(torch, dtype), shift
        self.generator = torch.Generator().manual_seed(shift)

    def __call__(self, *shape: int, low: int = -1, high: int = 1, dtype: Any = None) -> Tensor:
        drawn = torch.randint(low, high + 1, shape, generator=self.generator)
        return self.put(drawn.to(dtype or self.dtype))

    def powers(self, *shape: int) -> Tensor:
        """Scales: 0.5, 1 or 2."""
        return self.put(torch.exp2(torch.randint(-1, 2, shape, generator=self.generator).float()))

    def put(self, values: Tensor) -> Tensor:
        memory = torch.zeros(values.numel() + self.shift, dtype=values.dtype, device=self.device)
        placed = memory[self.shift :].view(values.shape)
        placed.copy_(values)
        return placed


Case = tuple[Any, list[Tensor]]  # what the call gives, and the exact results


def product(a: Tensor, b: Tensor) -> Tensor:
    """A b^T in float64; also of nothing."""
    return a.double() @ b.double().mT


def linear(make: Maker, M: int, N: int, K: int) -> Case:
    x, weight, bias = make(M, K), make(N, K), make(N)
    return anyop.linear(x, weight, bias), [product(x, weight) + bias.double()]


def linear_backward(make: Maker, M: int, N: int, K: int) -> Case:
    grad, x, weight = make(M, N), make(M, K), make(N, K)
    exact = [product(grad, weight.mT), product(grad.mT, x.mT), grad.double().sum(0)]
    return anyop.linear_backward(grad, x, weight), exact


def linear_act(make: Maker, M: int, N: int, K: int) -> Case:
    x, weight, bias, residual = make(M, K), make(N, K), make(N), make(M, N)
    exact = product(x, weight) + bias.double() + residual.double()
    return anyop.linear_act(x, weight, bias, residual, "relu"), [exact.relu()]


def linear_act_backward(make: Maker, M: int, N: int, K: int) -> Case:
    grad, x, weight, pre = make(M, N), make(M, K), make(N, K), make(M, N)
    passed = torch.where(pre > 0, grad, 0)
    exact = [product(passed, weight.mT), product(passed.mT, x.mT), passed.double().sum(0), passed]
    return anyop.linear_act_backward(grad, x, weight, pre, "relu"), exact


def linear_gated(make: Maker, M: int, N: int, K: int) -> Case:
    x, weight = make(M, K), make(2 * N, K)
    gate, value = product(x, weight).split(N, -1) if N else [torch.zeros(M, 0).to(x)] * 2
    return anyop.linear_gated(x, weight, "relu"), [gate.relu() * value]


def linear_wgrad_accumulate(make: Maker, M: int, N: int, K: int) -> Case:
    x, grad, before = make(M, K), make(M, N), make(N, K)
    narrow, wide = make.put(before), make.put(before.float())
    exact = before.double() + product(grad.mT, x.mT)
    anyop.linear_wgrad_accumulate(x, grad, wide)
    anyop.linear_wgrad_accumulate(x, grad, narrow)
    return (narrow, wide), [exact, exact]


def matmul(make: Maker, M: int, N: int, K: int) -> Case:
    """Plain, transposed, with gaps, with steps."""
    found, exact = [], []
    views = (
        lambda *s: make(*s), lambda *s: make(*s[::-1]).mT,
        lambda r, c: make(r, c + 5)[:, 2 : 2 + c], lambda r, c: make(2 * r, 3 * c)[::2, ::3],
    )  # fmt: skip
    for at, left in enumerate(views):
        a, b = left(M, K), views[(at + 1) % len(views)](K, N)
        found.append(anyop.matmul(a, b))
        exact.append(a.double() @ b.double())
    return tuple(found), exact


def matmul_backward(make: Maker, M: int, N: int, K: int) -> Case:
    grad, a, b = make(N, M).mT, make(M, K + 3)[:, 1 : K + 1], make(2 * K, N)[::2]
    exact = [grad.double() @ b.double().mT, a.double().mT @ grad.double()]
    return anyop.matmul_backward(grad, a, b), exact


def linear_w8a8(make: Maker, M: int, N: int, K: int) -> Case:
    x, weight, x_scale, weight_scale = make(M, K), make(N, K), make.powers(M), make.powers(N)
    exact = product(x, weight) * x_scale.double()[:, None] * weight_scale.double()
    one = make.powers()
    whole = product(x, weight) * one.double() * one.double()
    found = [anyop.linear_w8a8(x, weight, x_scale, weight_scale, out_dtype="float32")]
    return (*found, anyop.linear_w8a8(x, weight, one, one)), [exact, whole]


def spread(scale: Tensor, like: Tensor, rows: int) -> Tensor:
    """A scale of blocks for each element."""
    wide = scale.repeat_interleave(rows, -2).repeat_interleave(128, -1)
    return wide[..., : like.shape[-2], : like.shape[-1]].double()


def blocks_of(make: Maker, *shape: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """8-bit floats, their scales, what they stand for."""
    x = make(*shape)
    scale = make.powers(*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // 128))
    return x, scale, x.double() * spread(scale, x, rows)


def linear_fp8_block(make: Maker, M: int, N: int, K: int) -> Case:
    x, x_scale, wide_x = blocks_of(make, M, K, rows=1)
    weight, scale, wide = blocks_of(make, N, K, rows=128)
    turned = x_scale.mT.contiguous().mT
    found = [anyop.linear_fp8_block(x, weight, s, scale) for s in (x_scale, turned)]
    return tuple(found), [product(wide_x, wide)] * 2


def linear_w4(make: Maker, M: int, N: int, K: int) -> Case:
    """Of an even number of factors."""
    K += K % 2
    bytes_of = make(N, K // 2, low=0, high=255, dtype=torch.uint8)
    weight, _ = anyop.w4_pack(bytes_of, None, "plain")
    scale, x = make.powers(-(-K // 32), N).to(make.dtype), make(M, K)
    q = torch.stack([bytes_of % 16, bytes_of // 16], -1).reshape(N, K).double() - 8
    wide = q * scale.double().repeat_interleave(32, 0)[:K].mT
    return anyop.linear_w4(x, weight, scale, group_size=32), [product(x, wide)]


def offsets_for(T: int) -> Iterator[list[int]]:
    """All rows in one segment, the first or the last; segments of one row; rows of none; offsets that fall."""
    yield [0, T, T, T]
    yield [0, 0, 0, T]
    yield [0, 1, 2, 3]
    yield [min(T, 2), min(T, 5), min(T, 5), T // 2]
    yield [T + 9, -3, T // 2, T]


def segments(offsets: list[int], T: int) -> Iterator[tuple[int, slice]]:
    begin = min(max(offsets[0], 0), T)
    for expert, end in enumerate(offsets[1:]):
        end = min(max(begin, end), T)
        yield expert, slice(begin, end)
        begin = end


def grouped_linear(make: Maker, M: int, N: int, K: int) -> Case:
    """And its gradient."""
    x, weight, bias, grad = make(M, K), make(3, N, K), make(3, N), make(M, N)
    found: list[Tensor] = []
    exact: list[Tensor] = []
    for offsets in offsets_for(M):
        out, grad_x = (torch.zeros(M, n, device=make.device).double() for n in (N, K))
        grad_weight = torch.zeros(3, N, K, device=make.device).double()
        grad_bias = torch.zeros(3, N, device=make.device).double()
        for e, rows in segments(offsets, M):
            out[rows] = product(x[rows], weight[e]) + bias[e].double()
            grad_x[rows] = product(grad[rows], weight[e].mT)
            grad_weight[e] = product(grad[rows].mT, x[rows].mT)
            grad_bias[e] = grad[rows].double().sum(0)
        there = torch.tensor(offsets, dtype=torch.int32, device=make.device)
        found.append(anyop.grouped_linear(x, weight, there, bias))
        found.extend(anyop.grouped_linear_backward(grad, x, weight, there))
        exact += [out, grad_x, grad_weight, grad_bias]
    return tuple(found), exact


def grouped_linear_masked(make: Maker, M: int, N: int, K: int) -> Case:
    x, weight = make(5, M, K), make(5, N, K)
    counts = torch.tensor([0, 1, M, M + 9, -1], dtype=torch.int32, device=make.device)
    exact = x.double() @ weight.double().mT
    inside = torch.arange(M, device=make.device) < counts[:, None]
    exact = torch.where(inside[..., None], exact, 0)
    return anyop.grouped_linear_masked(x, weight, counts), [exact]


def grouped_linear_fp8_block(make: Maker, M: int, N: int, K: int) -> Case:
    x, x_scale, wide_x = blocks_of(make, M, K, rows=1)
    weight, scale, wide = blocks_of(make, 3, N, K, rows=128)
    found, exact = [], []
    for offsets in offsets_for(M):
        out = torch.zeros(M, N, device=make.device).double()
        for e, rows in segments(offsets, M):
            out[rows] = product(wide_x[rows], wide[e])
        there = torch.tensor(offsets, dtype=torch.int32, device=make.device)
        found.append(anyop.grouped_linear_fp8_block(x, weight, x_scale, scale, there))
        exact.append(out)
    return tuple(found), exact


def grouped_linear_fp8_block_masked(make: Maker, M: int, N: int, K: int) -> Case:
    x, x_scale, wide_x = blocks_of(make, 3, M, K, rows=1)
    weight, scale, wide = blocks_of(make, 3, N, K, rows=128)
    counts = torch.tensor([1, M + 9, -1], dtype=torch.int32, device=make.device)
    inside = torch.arange(M, device=make.device) < counts[:, None]
    exact = torch.where(inside[..., None], product(wide_x, wide), 0)
    return anyop.grouped_linear_fp8_block_masked(x, weight, x_scale, scale, counts), [exact]


CASES = {
    function: dtypes
    for functions, dtypes in (
        ((linear, linear_backward, linear_act, linear_act_backward, linear_gated), FLOATS),
        ((matmul, matmul_backward, grouped_linear, grouped_linear_masked), FLOATS),
        ((linear_wgrad_accumulate, linear_w4), HALVES),
        ((linear_w8a8,), BYTES),
        (
            (linear_fp8_block, grouped_linear_fp8_block, grouped_linear_fp8_block_masked),
            ["float8_e4m3fn"],
        ),
    )
    for function in functions
}
NAMED = [(function.__name__, dtype) for function in CASES for dtype in CASES[function]]


def points(name: str, shift: int) -> Iterator[tuple[int, int, int]]:
    """M, N, K: all small ones; shifted starts of some; and long ones."""
    grouped = name.startswith("grouped")
    rows = ROWS if not shift and not grouped else [0, 1, 2, 3, 5, 16, 17, 64, 65, 129]
    for K in reversed(SIDES):  # that of no terms behind others, whose sums lie in kept memory
        for N in SIDES:
            yield from ((M, N, K) for M in rows)
    if not shift:
        yield from ((MANY, N, K) for N, K in ((24, 136), (136, 24)))
        yield from ((M, LONG, 8) for M in (1, 17))
        yield from ((M, 8, LONG) for M in (1, 17))


def check(name: str, dtype: str, device: str, shift: int, most: int = 1000) -> int:
    """The points of a case, or as many drawn from them; how many there were."""
    tried = few(list(points(name, shift)), most, f"{name} {dtype} {shift}")
    return check_points(name, dtype, device, shift, tried)


def check_points(
    name: str, dtype: str, device: str, shift: int, tried: list[tuple[int, int, int]]
) -> int:
    (function,) = (f for f in CASES if f.__name__ == name)
    make, count = Maker(device, dtype, shift), 0
    for M, N, K in tried:
        found, exact = function(make, M, N, K)
        results = found if isinstance(found, tuple) else (found,)
        for at, (one, whole) in enumerate(zip(results, exact, strict=True)):
            assert torch.equal(one, whole.to(one.dtype)), (name, dtype, (M, N, K), shift, at)
        count += 1
    return count
