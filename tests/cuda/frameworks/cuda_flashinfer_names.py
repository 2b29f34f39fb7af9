# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's names on CUDA: a captured draw without seeds draws anew; experts are those of the CPU."""

from __future__ import annotations

import pytest
from anyop.torch.flashinfer import fused_moe, sampling
from on_cuda import torch


def test_a_replayed_graph_draws_anew():
    probs = torch.full((64, 1000), 1e-3, device="cuda")
    sampling.top_p_sampling_from_probs(probs, 0.9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sampling.top_p_sampling_from_probs(probs, 0.9)
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append(tokens.tolist())
    assert drawn[0] != drawn[1]
    assert all(0 <= token < 1000 for token in drawn[0] + drawn[1])


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_draws_by_seeds_and_generators(device):
    """Those of the CPU by seeds; a generator of either device gives its own each time."""
    random = torch.Generator().manual_seed(0)
    probs = torch.randn(64, 100, generator=random).softmax(-1)
    call = sampling.top_k_top_p_sampling_from_probs
    found = call(probs.cuda(), 40, 0.9, seed=3, offset=1)
    assert torch.equal(found.cpu(), call(probs, 40, 0.9, seed=3, offset=1))
    drawn = [
        call(probs.cuda(), 40, 0.9, generator=torch.Generator(device).manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(*drawn[:2])
    assert not torch.equal(*drawn[1:])


def test_experts_are_those_of_the_cpu():
    """Sums of 64 products in float32, in another order: 64 * 2^-24, and twice that for heavy tails."""
    random = torch.Generator().manual_seed(0)
    x, fc1, fc2 = (
        torch.randn(*shape, generator=random) / 8 for shape in ((33, 64), (8, 96, 64), (8, 64, 48))
    )
    ids = torch.randint(0, 8, (33, 2), generator=random)
    given = x, ids, torch.rand(33, 2, generator=random), fc1, fc2
    expected = fused_moe.cutlass_fused_moe(*given, torch.float32, None)
    found = fused_moe.cutlass_fused_moe(*(g.cuda() for g in given), torch.float32, None)
    torch.testing.assert_close(found.cpu(), expected, rtol=8e-6, atol=8e-6)
