# SPDX-License-Identifier: Apache-2.0
"""linear_w4 of few rows on a GPU: exactly, by each implementation, at every size that decides how it is cut."""

from __future__ import annotations

from itertools import product

import anyop
import pytest
from anyop import testing
from on_cuda import torch

IS_HOPPER = torch.cuda.get_device_capability() == (9, 0)
# Tiles of 128 results, stages of 256 factors, clusters of up to 8 stages.
SIZES = [(32, 32), (128, 256), (160, 288), (416, 8192), (4096, 1056), (1024, 2304), (20_000, 512)]
ROWS = [1, 2, 15, 16, 17, 32, 33, 63, 64]


def arguments(M: int, N: int, K: int, group: int, dtype, scale_dtype, zeros: str):
    """Whole numbers and scales that are powers of two: sums are exact, and rounded once."""
    generator = torch.Generator("cuda").manual_seed(M + N + K)

    def drawn(low: int, high: int, *shape: int):
        return torch.randint(low, high, shape, generator=generator, device="cuda")

    groups = -(-K // group)
    zero = drawn(-(2**31), 2**31, groups, -(-N // 8)).int()
    return {
        "x": drawn(-2, 3, M, K).to(dtype),
        "weight": drawn(0, 256, N, K // 2).to(torch.uint8),
        "scale": torch.exp2(drawn(-3, 2, groups, N).float()).to(scale_dtype),
        "zero": {"each": zero, "one row": zero[:1], "none": None}[zeros],
        "bias": drawn(-9, 9, N).to(dtype),
        "group_size": group,
    }


def exactly(x, weight, scale, zero, bias, group_size):
    wide = anyop.w4_unpack(weight, scale.float(), zero, group_size).double()
    return (x.double() @ wide.t() + bias.double()).to(x.dtype)


def hopper_calls() -> int:
    return sum(k.calls for k in testing.kernel_calls("linear_w4") if k.backend == "cuda_sm90")


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("backend", ["cuda", "cuda_sm90", "cuda_few_sm90", "cuda_ring_rows_sm90"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_size_exactly(dtype, backend, rows):
    if backend != "cuda" and not IS_HOPPER:
        pytest.skip(f"{backend} is for Hopper")
    dtype, tried = getattr(torch, dtype), 0
    testing.observe("linear_w4")
    before = hopper_calls()
    for (N, K), zeros in product(SIZES, ["each", "one row", "none"]):
        for group, scale_dtype in [(128, dtype), (256, torch.float32), (K, dtype)]:
            given = arguments(rows, N, K, group, dtype, scale_dtype, zeros)
            with anyop.use(backend):
                found = anyop.linear_w4(**given)
                again = anyop.linear_w4(**given)
            assert torch.equal(found, exactly(**given)), (N, K, group, zeros)
            assert torch.equal(found, again)
            tried += 2
    if backend in ("cuda", "cuda_sm90"):  # of many rows others are asked in place of the rest
        assert hopper_calls() - before == (tried if backend == "cuda_sm90" else 0)


@pytest.mark.skipif(not IS_HOPPER, reason="cuda_sm90 is for Hopper")
@pytest.mark.parametrize("N, K, group", [(33, 256, 128), (128, 288, 96), (136, 256, 128)])
def test_what_it_does_not_take_others_do(N, K, group):
    """Rows of scales or zero points that TMA does not read, groups that are no multiples of 128."""
    given = arguments(3, N, K, group, torch.bfloat16, torch.bfloat16, "each")
    with anyop.use("cuda_sm90"):
        assert torch.equal(anyop.linear_w4(**given), exactly(**given))


@pytest.mark.skipif(not IS_HOPPER, reason="cuda_sm90 is for Hopper")
@pytest.mark.parametrize("rows", [1, 5])
def test_a_graph_and_another_stream(rows):
    given = arguments(rows, 4096, 4096, 128, torch.bfloat16, torch.float32, "each")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    anyop.linear_w4(**given)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        found = anyop.linear_w4(**given)
    for value in (1, -2):
        given["x"].fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, exactly(**given))


@pytest.mark.skipif(not IS_HOPPER, reason="cuda_ring_sm90 is for Hopper")
@pytest.mark.parametrize("rows", [1, 5])
def test_products_that_overlap(rows):
    """In a graph each starts while the one before ends: the bits of calls that wait for one another."""
    given = arguments(rows, 4096, 4096, 128, torch.bfloat16, torch.float32, "each")
    weight = torch.randn(6144, 4096, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    anyop.linear(anyop.linear_w4(**given), weight)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(8):
            found = anyop.linear(anyop.linear_w4(**given), weight)
    for _ in range(20):
        given["x"].normal_()
        graph.replay()
        torch.cuda.synchronize()
        x = anyop.linear_w4(**given)
        torch.cuda.synchronize()
        assert torch.equal(found, anyop.linear(x, weight))
