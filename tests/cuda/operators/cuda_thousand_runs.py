# SPDX-License-Identifier: Apache-2.0
"""Attention gives the same bits in 1,000 runs, on two streams at once, with the logarithm wanted or not."""

from __future__ import annotations

import itertools
from typing import Any

import anyop
import pytest
from on_cuda import SUBJECTS, torch

RUNS, S, H, G, D = 1000, 1111, 16, 4, 128
SEEDS = itertools.count()
LENGTHS = [700, 33, 0, 2300, 1, 1500]


def normal(*shape: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(next(SEEDS))
    return torch.randn(shape, generator=generator, device="cuda").bfloat16()


def calls() -> dict[str, tuple[tuple, dict[str, Any]]]:
    """The arguments of each operator, of sizes that many blocks share."""
    q, k, v = normal(2, H, S, D), normal(2, G, S, D), normal(2, G, S, D + 8)[..., :D]
    grad, causal = normal(2, H, S, D), {"causal": True}
    out, lse = anyop.attention_with_lse(q, k, v, causal=True)
    tq, tk, tv = (x[0].transpose(0, 1) for x in (q, k, v))
    ends = torch.tensor([0, 100, 100, 101, 700, S], device="cuda").int()
    found = anyop.attention_varlen_with_lse(tq, tk, tv, ends, ends, causal=True)
    pages = torch.randperm(6 * 144, device="cuda").int().reshape(6, 144)
    lengths, counts = torch.tensor(LENGTHS, device="cuda").int(), pages.numel()
    caches = normal(counts, 16, G, D), normal(counts, 16, G, D + 8)[..., :D]
    latent, chosen = normal(counts, 16, 576), torch.randint(0, counts * 16, (64, 500)).int().cuda()
    bytes_of = torch.zeros(counts, 16, 656, dtype=torch.uint8, device="cuda")
    slots = torch.arange(counts * 16, device="cuda").int()
    rows = latent.flatten(0, 1)
    anyop.append_latent_fp8(bytes_of, rows[:, :512], rows[:, 512:], slots)
    return {
        "attention": ((q, k, v), causal),
        "attention_with_lse": ((q, k, v), causal),
        "attention_backward": ((grad, q, k, v, out, lse), causal),
        "attention_varlen": ((tq, tk, tv, ends, ends), causal),
        "attention_varlen_with_lse": ((tq, tk, tv, ends, ends), causal),
        "attention_varlen_backward": (
            (grad[0].transpose(0, 1), tq, tk, tv, *found, ends, ends), causal,
        ),
        "attention_paged": ((normal(6, H, D), *caches, pages, lengths), {}),
        "attention_paged cuda_sm90": ((normal(6 * 300, H, D), *caches, pages, lengths), {}),
        "mla_decode": ((normal(6, 2, H, 576), latent, pages, lengths), {}),
        "mla_sparse": ((normal(64, 64, 576), latent, chosen), {}),
        "mla_sparse_fp8": ((normal(64, 64, 576), bytes_of, chosen), {}),
        "merge_states": (([out, grad], [lse, lse * 0.5]), {}),
    }  # fmt: skip


@pytest.fixture(scope="module")
def given():
    return calls()


KERNELS = [
    (name, kernel["backend"])
    for name in (
        "attention", "attention_with_lse", "attention_backward", "attention_varlen",
        "attention_varlen_with_lse", "attention_varlen_backward", "attention_paged", "mla_decode",
        "mla_sparse", "mla_sparse_fp8", "merge_states",
    )
    for kernel in SUBJECTS[name].metadata["kernels"]
    if kernel["backend"] in ("cuda", "cuda_sm90")
]  # fmt: skip


def forced(backend: str):
    if backend == "cuda_sm90" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(f"cuda_sm90 is for 9.0, this is {torch.cuda.get_device_capability()}")
    return anyop.use(backend)


def results(found: Any) -> list[torch.Tensor]:
    found = found if isinstance(found, tuple) else (found,)
    return [one.reshape(-1).view(torch.uint8) for one in found if one is not None]


@pytest.mark.parametrize(("name", "backend"), KERNELS)
def test_a_thousand_runs(name, backend, given, monkeypatch):
    monkeypatch.setenv("ANYOP_FALLBACK", "error")
    positional, named = given.get(f"{name} {backend}") or given[name]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = torch.zeros(2, dtype=torch.int64, device="cuda")
    with forced(backend):
        expected = results(getattr(anyop, name)(*positional, **named))
        torch.cuda.synchronize()
        for run in range(RUNS):
            with torch.cuda.stream(streams[run % 2]):
                found = results(getattr(anyop, name)(*positional, **named))
                for one, other in zip(found, expected, strict=True):
                    wrong[run % 2] += (one != other).any()
        torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0]
    assert expected[0].any()


@pytest.mark.parametrize("backend", ["cuda", "cuda_sm90"])
@pytest.mark.parametrize("name", ["attention", "attention_varlen"])
def test_the_logarithm_changes_nothing(name, backend, given):
    positional, named = given[name]
    with forced(backend):
        out = getattr(anyop, name)(*positional, **named)
        assert torch.equal(out, getattr(anyop, f"{name}_with_lse")(*positional, **named)[0])
