# SPDX-License-Identifier: Apache-2.0
"""Products of few rows by the ring of weight on Hopper: exactly, in a graph, a row as among others.

Sizes that other tests of products have are too small for it. linear_w4: cuda_four_bits.py.
"""

from __future__ import annotations

import anyop
import pytest
from anyop import testing
from on_cuda import DEVICE, torch
from product_points import check_points

if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("cuda_ring_sm90 is for Hopper", allow_module_level=True)

RING = "cuda_ring_sm90"
SIZES = [(1024, 1024), (1040, 1088), (4096, 2048), (6144, 4096), (2560, 9728), (20_000, 1536)]
POINTS = [(rows, N, K) for N, K in SIZES for rows in (1, 2, 5, 8)]
ONE_ROW = [(1, N, K) for N, K in SIZES if N <= 4096 and K % 256 == 0]
KINDS = [
    *(("linear", dtype, POINTS) for dtype in ("float16", "bfloat16")),
    *(("linear_gated", dtype, POINTS) for dtype in ("float16", "bfloat16")),
    *(("linear_w8a8", dtype, ONE_ROW) for dtype in ("int8", "float8_e4m3fn")),
]
halves = pytest.mark.parametrize("name", ["linear", "linear_gated"])


def ring_calls(name: str) -> int:
    return sum(k.calls for k in testing.kernel_calls(name) if k.backend == RING)


@pytest.mark.parametrize(("name", "dtype", "points"), KINDS)
def test_every_size_exactly(name, dtype, points):
    testing.observe(name)
    before = ring_calls(name)
    with anyop.use(RING):
        check_points(name, dtype, DEVICE, 0, points)
    assert ring_calls(name) - before >= len(points)


def by_ring(name: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with anyop.use(RING):
        return getattr(anyop, name)(x, weight)


@halves
def test_a_graph_is_replayed_with_other_rows(name):
    """One behind another, so that each kernel begins while the one before ends."""
    x, weight = torch.randn(1, 4096, device=DEVICE), torch.randn(8192, 4096, device=DEVICE)
    x, weight = x.bfloat16(), weight.bfloat16()
    expected, changed = by_ring(name, x, weight), torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [by_ring(name, changed, weight) for _ in range(4)]
    changed.copy_(x)
    graph.replay()
    assert all(torch.equal(one, expected) for one in found)


@halves
def test_bits_of_a_row_do_not_depend_on_how_many_there_are(name):
    """From two rows on, for one row's sums are added in another order."""
    x, weight = torch.randn(8, 4096, device=DEVICE), torch.randn(8192, 4096, device=DEVICE)
    x, weight = x.bfloat16(), weight.bfloat16()
    all_rows = by_ring(name, x, weight)
    for rows in range(2, 8):
        few = by_ring(name, x[:rows].contiguous(), weight)
        assert torch.equal(few, all_rows[:rows]), rows
