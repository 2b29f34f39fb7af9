# SPDX-License-Identifier: Apache-2.0
"""Products of few rows by the ring of weight on Hopper: exactly, the same bits twice, in a graph, beside 4 bits' tests.

Whole numbers: sums are exact, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyop
import pytest
from anyop import testing
from on_cuda import torch

if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("cuda_ring_sm90 is for Hopper", allow_module_level=True)

RING = "cuda_ring_sm90"
SIZES = [(1024, 1024), (1040, 1088), (4096, 2048), (6144, 4096), (2560, 9728), (20_000, 1536)]
DTYPES = [torch.float16, torch.bfloat16]


def whole(low: int, high: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=generator, device="cuda").to(dtype)


def linear(rows: int, N: int, K: int, dtype: torch.dtype) -> tuple[dict, torch.Tensor]:
    x, weight, bias = (whole(-2, 3, *s, dtype=dtype) for s in ((rows, K), (N, K), (N,)))
    expected = x.double() @ weight.double().t() + bias.double()
    return {"x": x, "weight": weight, "bias": bias}, expected.to(dtype)


def linear_gated(rows: int, N: int, K: int, dtype: torch.dtype) -> tuple[dict, torch.Tensor]:
    x, weight = (whole(-1, 2, *s, dtype=dtype) for s in ((rows, K), (N, K)))
    gate, value = (x.double() @ weight.double().t()).chunk(2, 1)
    given = {"x": x, "weight": weight, "activation": "relu"}
    return given, (gate.relu() * value).to(dtype)


def linear_w8a8(rows: int, N: int, K: int, dtype: torch.dtype) -> tuple[dict, torch.Tensor]:
    x, weight = (whole(-2, 3, *s, dtype=torch.float8_e4m3fn) for s in ((rows, K), (N, K)))
    scales = torch.exp2(whole(-3, 1, N, dtype=torch.float32))
    given = {
        "x": x, "weight": weight, "x_scale": scales[:1].clone(), "weight_scale": scales,
        "out_dtype": str(dtype)[6:],
    }  # fmt: skip
    expected = x.double() @ weight.double().t() * scales[0].double() * scales.double()
    return given, expected.to(dtype)


def cases() -> Iterator:
    for make in (linear, linear_gated, linear_w8a8):
        for N, K in SIZES:
            if make is linear_w8a8 and (N > 4096 or K % 256):
                continue
            for rows in (1,) if make is linear_w8a8 else (1, 2, 5, 8):
                yield pytest.param(make, rows, N, K, id=f"{make.__name__}-{rows}x{N}x{K}")


def by_ring(make: Callable, **given: object) -> torch.Tensor:
    with anyop.use(RING):
        return getattr(anyop, make.__name__)(**given)


def ring_calls(make: Callable) -> int:
    return sum(k.calls for k in testing.kernel_calls(make.__name__) if k.backend == RING)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("make", "rows", "N", "K"), cases())
def test_every_size_exactly(make, rows, N, K, dtype):
    given, expected = make(rows, N, K, dtype)
    testing.observe(make.__name__)
    before = ring_calls(make)
    for _ in range(3):
        assert torch.equal(by_ring(make, **given), expected)
    assert ring_calls(make) - before == 3


@pytest.mark.parametrize("make", [linear, linear_gated])
def test_a_graph_is_replayed_with_other_rows(make):
    """One behind another, so that each kernel begins while the one before ends."""
    given, expected = make(1, 4096, 4096, torch.bfloat16)
    call = {**given, "x": torch.zeros_like(given["x"])}
    by_ring(make, **call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [by_ring(make, **call) for _ in range(4)]
    call["x"].copy_(given["x"])
    graph.replay()
    assert all(torch.equal(one, expected) for one in found)


@pytest.mark.parametrize("make", [linear, linear_gated])
def test_bits_of_a_row_do_not_depend_on_how_many_there_are(make):
    """From two rows on, for one row's sums are added in another order."""
    given, _ = make(8, 4096, 4096, torch.bfloat16)
    given["x"] = torch.randn(8, 4096, device="cuda").bfloat16()
    all_rows = by_ring(make, **given)
    for rows in range(2, 8):
        few = by_ring(make, **{**given, "x": given["x"][:rows].contiguous()})
        assert torch.equal(few, all_rows[:rows]), rows
