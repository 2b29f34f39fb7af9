# SPDX-License-Identifier: Apache-2.0
"""Times linear, matmul, attention, embedding and topk against torch, by default on one thread, in one run.

    python bench/cpu/products.py [--rounds 7] [--threads 1] [--only linear,topk]

Both sides read the same tensors; torch is given out= wherever it takes it. Each result is compared
with torch first. One line of JSON for each case goes to bench/results/products.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import torch
from harness import beside_torch, environment, write
from torch.nn import functional

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
Case = tuple[str, str, Callable, Callable]  # operator, sizes, ours, torch's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="operators, separated by commas")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="float16 takes torch minutes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    anyop.set_num_threads(options.threads)
    only = set(filter(None, options.only.split(",")))
    rows = []
    with torch.no_grad():
        for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
            for case in cases(dtype):
                if not only or case[0] in only:
                    rows.append(measure(case, dtype, options.rounds))
    where = environment(anyop, torch) | {"threads": options.threads}
    print("written to", write("products", rows, where).name)


def cases(dtype: torch.dtype) -> Iterator[Case]:
    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes).to(dtype)

    linears = [(4096, 384, 384), (4096, 384, 1536), (4096, 1536, 384), (2048, 4096, 4096)]
    linears += [(M, 4096, 4096) for M in (1, 4, 16, 64, 128)]
    for M, K, N in linears:
        x, weight, bias, y = draw(M, K), draw(N, K), draw(N), draw(M, N)
        yield (
            "linear",
            f"M={M} K={K} N={N}",
            lambda x=x, w=weight, b=bias, y=y: anyop.linear(x, w, b, out=y),
            lambda x=x, w=weight, b=bias, y=y: torch.addmm(b, x, w.T, out=y),
        )
    for text, a, b in (
        ("X=384 M=128 K=32 N=128", draw(384, 128, 32), draw(384, 32, 128)),
        ("X=384 M=128 K=32 N=128, b transposed", draw(384, 128, 32), draw(384, 128, 32).mT),
        ("M=2048 K=4096 N=4096", draw(2048, 4096), draw(4096, 4096)),
    ):
        y = torch.matmul(a, b)
        yield (
            "matmul",
            text,
            lambda a=a, b=b, y=y: anyop.matmul(a, b, out=y),
            lambda a=a, b=b, y=y: torch.matmul(a, b, out=y),
        )
    yield from attention_cases(draw)
    for V, D, n in ((30522, 384, 4096), (32000, 4096, 2048)):
        weight, indices, y = draw(V, D), torch.randint(0, V, (n,)), draw(n, D)
        yield (
            "embedding",
            f"V={V} D={D} n={n}",
            lambda i=indices, w=weight, y=y: anyop.embedding(i, w, out=y),
            lambda i=indices, w=weight, y=y: torch.index_select(w, 0, i, out=y),
        )
    for sizes, k in (
        ((2048, 4096), 1),
        ((2048, 4096), 10),
        ((2048, 4096), 100),
        ((1, 4_000_000), 10),
    ):
        x = draw(*sizes)
        yield (
            "topk",
            f"{sizes[0]}x{sizes[1]} k={k}",
            lambda x=x, k=k: anyop.topk(x, k)[0],
            lambda x=x, k=k: torch.topk(x, k)[0],
        )


def attention_cases(draw: Callable) -> Iterator[Case]:
    for B, H, G, S, T, D, causal, masked in (
        (32, 12, 12, 128, 128, 32, False, False),
        (32, 12, 12, 128, 128, 32, False, True),
        (1, 8, 8, 1024, 1024, 64, False, False),
        (1, 8, 8, 1024, 1024, 64, True, False),
        (1, 32, 8, 1024, 1024, 128, False, False),
        (1, 32, 8, 1, 4096, 128, False, False),
    ):
        q, k, v = draw(B, H, S, D), draw(B, G, T, D), draw(B, G, T, D)
        mask = torch.ones(B, 1, 1, T, dtype=torch.bool) if masked else None
        if masked:
            mask[..., T - T // 4 :] = False
        y = torch.empty_like(q)
        yield (
            "attention",
            f"B={B} H={H} G={G} S={S} T={T} D={D}{' causal' * causal}{' mask' * masked}",
            lambda q=q, k=k, v=v, m=mask, c=causal, y=y: anyop.attention(
                q, k, v, m, causal=c, out=y
            ),
            lambda q=q, k=k, v=v, m=mask, c=causal, g=G < H: (
                functional.scaled_dot_product_attention(q, k, v, m, is_causal=c, enable_gqa=g)
            ),
        )


def measure(case: Case, dtype: torch.dtype, rounds: int) -> dict:
    operator, sizes, ours, theirs = case
    limit = TOLERANCE[dtype] * theirs().double().abs().max().clamp(min=1).item()
    return {"operator": operator} | beside_torch(operator, sizes, ours, theirs, limit, rounds)


if __name__ == "__main__":
    main()
