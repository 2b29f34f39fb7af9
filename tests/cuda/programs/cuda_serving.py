# SPDX-License-Identifier: Apache-2.0
"""Serving on CUDA: 32 prompts of a transformers model by one CUDA graph, and graphs of the operators that read pages,
captured at one set of lengths and page tables and replayed with 100 others.
"""

from __future__ import annotations

import anyop
import numpy as np
import pytest
from on_cuda import torch

pytest.importorskip("transformers", reason="transformers is not installed")
from serving import KINDS, Server, assert_greedy, prompts

NEW = 24  # tokens of each sequence: each comes to several pages that it had not at the capture
REPLAYS = 100


class Decoding:
    """One token of each of a server's sequences, captured once."""

    def __init__(self, server: Server) -> None:
        self.server, most = server, len(server.seen)
        self.tokens = torch.zeros(most, dtype=torch.int64, device="cuda")
        self.positions = torch.zeros(most, dtype=torch.int64, device="cuda")
        server.slots = torch.full((most,), -1, dtype=torch.int32, device="cuda")
        server.starts = None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what is loaded and chosen at a first call
            for _ in range(2):
                server.run(self.tokens, self.positions)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.found = server.run(self.tokens, self.positions)

    def step(self, tokens: list[int]) -> list[int]:
        positions, slots = self.server.place([1] * len(tokens))
        self.server.show()
        self.server.slots.copy_(torch.tensor(slots, dtype=torch.int32))
        self.tokens.copy_(torch.tensor(tokens))
        self.positions.copy_(torch.tensor(positions))
        self.graph.replay()
        return self.found.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sinks"])
def test_one_graph_decodes_32_uneven_prompts(kind, dtype):
    """The experts of the model with sinks wait for the host, so it is served without a graph, below."""
    given = prompts(32, 200)
    server = Server(kind, "cuda", dtype, len(given), pages=56)
    served = [[token] for token in server.step(given)]
    decoding = Decoding(server)
    for _ in range(NEW - 1):
        for mine, token in zip(served, decoding.step([mine[-1] for mine in served])):
            mine.append(token)
    assert_greedy(kind, "cuda", dtype, given, served)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_come_while_others_decode(kind):
    given = prompts(32, 200)
    server = Server(kind, "cuda", torch.float32, len(given), pages=56)
    served: list[list[int]] = [[] for _ in given]
    waiting = [[] if b >= 24 else prompt for b, prompt in enumerate(given)]
    for turn in range(6):
        found = server.step(waiting)
        for mine, token in zip(served, found):
            mine.extend([] if token is None else [token])
        waiting = [mine[-1:] for mine in served]
        waiting[24:] = given[24:] if turn == 0 else waiting[24:]
    assert_greedy(kind, "cuda", torch.float32, given, served)


def normal(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def replayed(call, table, lengths, pages: int, longest: int, exact: bool) -> None:
    """Captured at half of the longest sequences; shorter, longer and empty ones, other pages, against eager calls."""
    draw, sequences = np.random.default_rng(0), len(lengths)
    lengths.fill_(longest // 2)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for turn in range(REPLAYS):
        drawn = draw.integers(0, longest + 1, sequences)
        drawn[draw.random(sequences) < 0.2] = 0
        drawn[0] = [0, longest, 1, longest // 3][turn % 4]
        lengths.copy_(torch.tensor(drawn, dtype=torch.int32))
        table.copy_(torch.tensor(draw.integers(0, pages, tuple(table.shape)), dtype=torch.int32))
        graph.replay()
        for found, eager in zip(captured, call(), strict=True):
            if exact:
                assert torch.equal(found, eager), (turn, drawn.tolist())
            else:
                torch.testing.assert_close(found, eager, rtol=1.6e-2, atol=1.6e-2)
            assert not found.isnan().any()
        empty = torch.tensor(drawn == 0, device="cuda")
        per = captured[0].shape[0] // sequences
        rows = captured[0].reshape(sequences, per, -1)[empty]
        assert not rows.any() and (captured[1].reshape(sequences, -1)[empty] == -torch.inf).all()


@pytest.mark.parametrize("split_size", [0, 128])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("cached", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_attention_paged_in_a_graph_with_other_lengths_and_pages(cached, queries, split_size):
    B, H, G, D, P, M, N = 9, 8, 2, 128, 16, 160, 700
    caches = [normal(N, P, G, D + i)[..., :D].contiguous().to(cached) for i in (0, 8)]
    table = torch.zeros(B, M, dtype=torch.int32, device="cuda")
    lengths, q = torch.zeros(B, dtype=torch.int32, device="cuda"), normal(B * queries, H, D)

    def call():
        return anyop.attention_paged(q, *caches, table, lengths, split_size=split_size)

    replayed(call, table, lengths, N, M * P, split_size > 0)


@pytest.mark.parametrize("split_size", [0, 128])
@pytest.mark.parametrize("queries", [1, 3])
def test_mla_decode_in_a_graph_with_other_lengths_and_pages(queries, split_size):
    B, H, W, P, M, N = 5, 16, 576, 64, 40, 150
    table = torch.zeros(B, M, dtype=torch.int32, device="cuda")
    lengths = torch.zeros(B, dtype=torch.int32, device="cuda")
    q, cache = normal(B, queries, H, W), normal(N, P, W)
    if "cuda" not in [name.partition("_")[0] for name in anyop.backends("mla_decode")]:
        pytest.skip("this build has no CUDA kernel of mla_decode")

    def call():
        return anyop.mla_decode(q, cache, table, lengths, split_size=split_size, scale=192**-0.5)

    replayed(call, table, lengths, N, M * P, split_size > 0)
