# SPDX-License-Identifier: Apache-2.0
"""What bench/cpu/attention.py times: each call of the family, and what one writes with torch in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyop
import torch
from torch.nn import functional

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
Draw = Callable[..., torch.Tensor]


@dataclass
class Case:
    """Two calls of the same tensors; torch's, given float64, is the reference."""

    operator: str
    sizes: str
    tensors: tuple[torch.Tensor, ...]
    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    tolerance: float = 1  # times the operator's


@dataclass
class Dense:
    """B x S x H/G x D, T keys; T=None: as many as queries."""

    B: int
    S: int
    H: int
    G: int
    D: int
    T: int | None = None
    causal: bool = False
    window: int = -1  # keys before a query's own that it sees
    mask: str = ""  # "keys": (B, 1, 1, T); "full": (1, 1, S, T)
    gradient: bool = True  # is one asked for in training

    def text(self) -> str:
        keys = f" T={self.T}" if self.T else ""
        bound = f" window {self.window}" if self.window >= 0 else " causal" * self.causal
        how = keys + bound + (f" mask of {self.mask}" if self.mask else "")
        heads = f"{self.H}/{self.G}" if self.G < self.H else f"{self.H}"
        return f"{self.B}x{self.S}x{heads}x{self.D}{how}"

    def tensors(self, draw: Draw) -> tuple[torch.Tensor, ...]:
        T = self.T or self.S
        return tuple(
            draw(self.B, n, heads, self.D).transpose(1, 2)
            for n, heads in ((self.S, self.H), (T, self.G), (T, self.G))
        )

    def options(self) -> dict[str, Any]:
        """anyop's, but for the mask."""
        return {"causal": self.causal, "window_left": self.window}

    def read_mask(self) -> torch.Tensor | None:
        """The mask that both are given; None: none."""
        T = self.T or self.S
        if self.mask == "keys":
            lengths = torch.arange(self.B) * (T // 2) // self.B + T // 2
            return (torch.arange(T) < lengths[:, None])[:, None, None]
        return torch.rand(1, 1, self.S, T) < 0.7 if self.mask else None

    def torch_options(self) -> dict[str, Any]:
        """Windows are a mask, too: torch has no other way."""
        if self.window < 0:
            return {"attn_mask": self.read_mask(), "is_causal": self.causal}
        behind = torch.arange(self.S)[:, None] - torch.arange(self.T or self.S)
        return {"attn_mask": (behind >= 0) & (behind <= self.window)}


SHAPES = (
    Dense(1, 512, 8, 8, 64),
    Dense(1, 512, 8, 8, 64, causal=True),
    Dense(1, 1024, 8, 2, 128),
    Dense(1, 1024, 8, 2, 128, causal=True),
    Dense(8, 64, 8, 8, 64),
    Dense(8, 64, 8, 8, 64, causal=True),
    Dense(8, 64, 8, 8, 64, mask="keys"),
    Dense(1, 512, 8, 8, 64, mask="full"),
    Dense(1, 1024, 8, 2, 128, causal=True, window=127),
    Dense(1, 1, 32, 8, 128, T=128, gradient=False),
    Dense(1, 1, 32, 8, 128, T=1024, gradient=False),
    Dense(1, 1, 32, 8, 128, T=4096, gradient=False),
    Dense(1, 1, 32, 1, 128, T=4096, gradient=False),
    Dense(4, 1, 32, 32, 128, T=1024, gradient=False),
)


def dense(draw: Draw) -> Iterator[Case]:
    for shape in SHAPES:
        q, k, v = shape.tensors(draw)
        options, gqa = shape.torch_options(), shape.G < shape.H
        mask = options["attn_mask"] if shape.mask else None

        def ours(q, k, v, m=mask, shape=shape):
            return anyop.attention(q, k, v, m, **shape.options())

        def torchs(q, k, v, o=options, g=gqa):
            return functional.scaled_dot_product_attention(q, k, v, enable_gqa=g, **o)

        yield Case("attention", shape.text(), (q, k, v), ours, torchs)
        if shape.gradient and not shape.mask:
            yield from with_lse(shape, (q, k, v))
        if shape.gradient:
            yield Gradient(shape, (q, k, v), mask, torchs, draw).case()


def with_lse(shape: Dense, tensors: tuple[torch.Tensor, ...]) -> Iterator[Case]:
    """Only torch's own kernel has a logarithm; it takes as many heads of keys as of queries."""
    if shape.window >= 0:
        return
    group = shape.H // shape.G

    def ours(q, k, v):
        return anyop.attention_with_lse(q, k, v, None, **shape.options())

    def torchs(q, k, v):
        if group > 1:
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        out, lse = FLASH(q, k, v, 0.0, shape.causal)
        return out, lse.float()

    yield Case("attention_with_lse", shape.text(), tensors, ours, torchs)


@dataclass
class Gradient:
    """The backward pass alone: both sides have what their forward pass kept."""

    shape: Dense
    tensors: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None
    forward: Callable[..., torch.Tensor]
    draw: Draw
    graphs: dict[torch.dtype, Any] = field(default_factory=dict)

    def case(self) -> Case:
        q, k, v = self.tensors
        grad = torch.empty_like(q).copy_(self.draw(*q.shape))
        options = self.shape.options()
        out, lse = anyop.attention_with_lse(q, k, v, self.mask, **options)

        def ours(g, q, k, v, out=out, lse=lse):
            found = anyop.attention_backward(g, q, k, v, out, lse, mask=self.mask, **options)
            return found[:3]

        return Case(
            "attention_backward", self.shape.text(), (grad, q, k, v), ours, self.backward, 4
        )

    def backward(self, g, q, k, v):
        if q.dtype not in self.graphs:
            leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
            with torch.enable_grad():
                self.graphs[q.dtype] = self.forward(*leaves), leaves
        out, leaves = self.graphs[q.dtype]
        return torch.autograd.grad(out, leaves, g, retain_graph=True)


def varlen(draw: Draw) -> Iterator[Case]:
    for text, H, G, D, lengths in (
        ("128+384+64+512+32 8x64", 8, 8, 64, [128, 384, 64, 512, 32]),
        ("16x(1 to 31) 8/2x128", 8, 2, 128, list(range(1, 32, 2))),
    ):
        starts = torch.tensor([0, *lengths]).cumsum(0)
        places, total, cuts = starts.int(), sum(lengths), starts.tolist()

        def ours(q, k, v, p=places):
            return anyop.attention_varlen(q, k, v, p, p, causal=True)

        def torchs(q, k, v, cuts=cuts, g=G < H):
            outs = []
            for begin, end in zip(cuts, cuts[1:]):
                one = (x[None, begin:end].transpose(1, 2) for x in (q, k, v))
                outs.append(
                    functional.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=g)
                )
            return torch.cat([x[0].transpose(0, 1) for x in outs])

        tensors = draw(total, H, D), draw(total, G, D), draw(total, G, D)
        yield Case("attention_varlen", f"{text} causal", tensors, ours, torchs)


def paged(draw: Draw) -> Iterator[Case]:
    for B, L, P, H, G, D in ((4, 1024, 16, 32, 8, 128), (1, 1024, 16, 32, 8, 128)):
        pages = L // P
        table = torch.randperm(B * pages).view(B, pages).int()
        lengths, places = torch.full((B,), L, dtype=torch.int32), table.long()

        def ours(q, k, v, t=table, n=lengths):
            return anyop.attention_paged(q, k, v, t, n)[0]

        def torchs(q, k, v, t=places, L=L):
            keys, values = (x[t].flatten(1, 2)[:, :L].transpose(1, 2) for x in (k, v))
            q = q[:, :, None]
            return functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)[
                :, :, 0
            ]

        cache = (B * pages, P, G, D)
        tensors = draw(B, H, D), draw(*cache), draw(*cache)
        yield Case("attention_paged", f"B={B} L={L} {H}/{G}x{D}", tensors, ours, torchs)


def latent(draw: Draw) -> Iterator[Case]:
    P, W, R = 64, 576, 512
    for B, L, H in ((4, 1024, 16), (1, 4096, 16), (1, 2048, 128)):
        pages, scale = L // P, 192**-0.5
        table = torch.randperm(B * pages).view(B, pages).int()
        lengths, places = torch.full((B,), L, dtype=torch.int32), table.long()

        def ours(q, cache, t=table, n=lengths, s=scale):
            return anyop.mla_decode(q, cache, t, n, scale=s)[0]

        def torchs(q, cache, t=places, s=scale, R=R):
            rows = cache[t].flatten(1, 2)
            scores = torch.einsum("bshw,blw->bshl", q, rows) * s
            weights = scores.to(torch.promote_types(q.dtype, torch.float32)).softmax(-1)
            return torch.einsum("bshl,blr->bshr", weights.to(q.dtype), rows[..., :R])

        tensors = draw(B, 1, H, W), draw(B * pages, P, W)
        yield Case("mla_decode", f"B={B} L={L} H={H}", tensors, ours, torchs, 2)


def cache(draw: Draw) -> Iterator[Case]:
    G, D, P, pages = 8, 128, 16, 128
    for tokens in (4, 512):
        slots = torch.randperm(pages * P)[:tokens]
        caches = [[draw(pages, P, G, D) for _ in range(2)] for _ in range(2)]

        def ours(k, v, s=slots, to=caches[0]):
            anyop.append_kv(*to, k, v, s)
            return to

        def torchs(k, v, s=slots, to=caches[1]):
            for cached, new in zip(to, (k, v)):
                cached.view(-1, G, D).index_put_((s,), new.to(cached.dtype))
            return to

        for one, other in zip(*caches):
            other.copy_(one)
        tensors = draw(tokens, G, D), draw(tokens, G, D)
        yield Case("append_kv", f"{tokens} tokens {G}x{D}", tensors, ours, torchs)


def merged(draw: Draw) -> Iterator[Case]:
    for rows in (4, 1024):
        outs = [draw(rows, 32, 128) for _ in range(2)]
        lses = [torch.randn(rows, 32) for _ in range(2)]

        def ours(a, b, x, y):
            return anyop.merge_states([a, b], [x, y])

        def torchs(a, b, x, y):
            both = torch.logaddexp(x, y)
            shares = ((z - both).exp()[..., None] for z in (x, y))
            return (a * next(shares) + b * next(shares)).to(a.dtype), both

        yield Case("merge_states", f"2x{rows}x32x128", (*outs, *lses), ours, torchs)


def cases(dtype: torch.dtype) -> Iterator[Case]:
    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes).to(dtype)

    torch.manual_seed(0)
    for family in (dense, varlen, paged, latent, cache, merged):
        yield from family(draw)
