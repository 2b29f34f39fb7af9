# SPDX-License-Identifier: Apache-2.0
"""The tile kernels of products on a GPU: ragged shapes by each implementation and choice, bad offsets, a row's bits."""

from __future__ import annotations

from collections.abc import Callable

import anyop
import pytest
from anyop._routes import implementations
from on_cuda import torch

SHAPES = [
    (1, 1024, 512), (2, 24, 144), (7, 520, 208), (16, 1000, 4096), (17, 136, 64), (63, 264, 1040), (64, 2568, 1008),
    (65, 257, 128), (127, 129, 144), (129, 65, 192), (300, 520, 208), (1000, 776, 1104), (130, 131, 129), (3, 5, 1),
]  # fmt: skip
CHOICES = [f"cuda_sm90:{choice}" for choice in range(5)]
IMPLEMENTATIONS = ["cuda", "cuda_sm90", *CHOICES, "cuda_tiles", "cuda_tiles_sm90"]
OPERATORS = [
    "linear",
    "linear_gated",
    "linear_w8a8",
    "linear_fp8_block",
    "grouped_linear",
    "grouped_linear_masked",
]
SMALL = 2.0**-8  # of bfloat16's rounding, half an ulp of 8 bits, and of the sums' own


def normal(*shape: int, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def scales(*shape: int):
    return torch.rand(*shape, device="cuda") + 0.5


def spread(scale, like):
    """A scale of blocks for each element."""
    for dimension in (-1, -2):
        if scale.shape[dimension] != like.shape[dimension]:
            scale = scale.repeat_interleave(128, dimension)
    return scale[..., : like.shape[-2], : like.shape[-1]].double()


def case(name: str, M: int, N: int, K: int) -> tuple[Callable, torch.Tensor]:
    """A call, and its result in float64."""
    x, weight = normal(M, K), normal(N, K)
    if name == "linear":
        bias = normal(N)
        return lambda: anyop.linear(
            x, weight, bias
        ), x.double() @ weight.double().t() + bias.double()
    if name == "linear_gated":
        both = normal(2 * N, K)
        gate, value = (x.double() @ both.double().t()).chunk(2, -1)
        return lambda: anyop.linear_gated(x, both), torch.nn.functional.silu(gate) * value
    if name.startswith("grouped"):
        experts = normal(3, N, K)
        if name == "grouped_linear_masked":
            parts, counts = (
                normal(3, M, K),
                torch.tensor([M // 2, -1, M + 9], device="cuda", dtype=torch.int32),
            )
            exact = parts.double() @ experts.double().transpose(1, 2)
            exact[0, M // 2 :], exact[1] = 0, 0
            return lambda: anyop.grouped_linear_masked(parts, experts, counts), exact
        given = [M // 4, M // 2, -5, M + 99]  # falls, and ends behind the last row
        offsets, exact = (
            torch.tensor(given, device="cuda", dtype=torch.int32),
            torch.zeros(M, N, device="cuda").double(),
        )
        for e, (begin, end) in enumerate([(M // 4, M // 2), (M // 2, M // 2), (M // 2, M)]):
            exact[begin:end] = x[begin:end].double() @ experts[e].double().t()
        return lambda: anyop.grouped_linear(x, experts, offsets), exact
    x, weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    if name == "linear_w8a8":
        xs, ws = scales(M), scales(N)
        exact = (x.double() @ weight.double().t()) * xs[:, None].double() * ws.double()
        return lambda: anyop.linear_w8a8(x, weight, xs, ws), exact
    xs, ws = scales(M, -(-K // 128)), scales(-(-N // 128), -(-K // 128))
    exact = (x.double() * spread(xs, x)) @ (weight.double() * spread(ws, weight)).t()
    return lambda: anyop.linear_fp8_block(x, weight, xs, ws), exact


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", [name for name in OPERATORS if hasattr(anyop, name)])
def test_ragged_shapes(name, implementation):
    """Within bfloat16's rounding of the exact sums, and the same bits twice; what it does not take, others do."""
    backend, _, choice = implementation.partition(":")
    has = [found for found in implementations(name) if found["name"] == backend]
    if not has or (choice and int(choice) >= has[0]["choices"]):
        pytest.skip(f"{name} has no {implementation}")
    for shape in SHAPES:
        call, exact = case(name, *shape)
        with anyop.use(implementation):
            found, again = call(), call()
        assert torch.equal(found, again), shape
        size = exact.square().mean().sqrt()
        worst = ((found.double() - exact).abs() / (exact.abs() + size)).max().item()
        # Tensor cores add the 32 products of float8 of an instruction to the sum with 14 bits.
        limit = 2 * SMALL + shape[2] / 32 * 2.0**-14 if name == "linear_w8a8" else SMALL
        assert worst <= limit or not exact.any(), (shape, worst)


@pytest.mark.parametrize("implementation", ["cuda_tiles", "cuda_tiles_sm90"])
def test_bits_of_a_row_do_not_depend_on_the_others(implementation):
    x, weight, bias = normal(1000, 1024), normal(776, 1024), normal(776)
    with anyop.use(implementation):
        whole = anyop.linear(x, weight, bias)
        for rows in (1, 3, 16, 64, 65, 129, 500):
            for begin in (0, 1, 200):
                part = anyop.linear(x[begin : begin + rows].contiguous(), weight, bias)
                assert torch.equal(part, whole[begin : begin + rows]), (rows, begin)


def test_a_graph_is_replayed_with_other_offsets():
    x, weight = normal(300, 256), normal(5, 136, 256)
    offsets = torch.tensor([0, 10, 10, 200, 250, 300], device="cuda", dtype=torch.int32)
    anyop.grouped_linear(x, weight, offsets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = anyop.grouped_linear(x, weight, offsets)
    for given in ([0, 300, 300, 300, 300, 300], [7, 20, 150, 150, 151, 299]):
        offsets.copy_(torch.tensor(given))
        graph.replay()
        assert torch.equal(found, anyop.grouped_linear(x, weight, offsets)), given


def test_grouped_rows_of_more_than_two_to_the_31_elements():
    rows = (1 << 31) // 1024 + 300
    x, weight = normal(rows, 1024), normal(3, 64, 1024)
    offsets = torch.tensor([0, 100, rows - 50, rows], device="cuda", dtype=torch.int32)
    found = anyop.grouped_linear(x, weight, offsets)
    for at, expert in ((0, 0), (100, 1), (rows - 51, 1), (rows - 50, 2), (rows - 1, 2)):
        exact = x[at].double() @ weight[expert].double().t()
        assert ((found[at].double() - exact).abs() <= 2 * SMALL * (32 + exact.abs())).all(), at
