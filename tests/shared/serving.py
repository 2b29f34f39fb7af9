# SPDX-License-Identifier: Apache-2.0
"""A server in small: a transformers model whose layers keep keys and values in pages, for any number of sequences.

Tokens of all sequences stand one behind the other in one row. Each layer appends their keys and values by append_kv and
attends by attention_paged: prompts, single tokens and both at once are the same call. A step for one token of each
sequence reads lengths, pages and slots where they lie, so that it can be captured into one CUDA graph.
"""

from __future__ import annotations

import warnings
from typing import Any

import anyop
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

NAME = "anyop_pages"  # of the attention; transformers makes no mask for it
SIZES = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
KINDS = {
    "causal": lambda: transformers.LlamaConfig(**SIZES),
    "window": lambda: transformers.MistralConfig(**SIZES, sliding_window=9),
    "softcap": lambda: transformers.Gemma2Config(
        **SIZES, sliding_window=8, attn_logit_softcapping=5.0, query_pre_attn_scalar=16
    ),
    "sinks": lambda: transformers.GptOssConfig(
        **SIZES, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
    ),
}


def model(config: Any, implementation: str, device: str, dtype: torch.dtype) -> Any:
    """The same weights each time, large enough that scores differ."""
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
    ).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(6 if weight.dim() > 1 else 1)
    return made.to(device, dtype)


class Server:
    """Room for `most` sequences of up to `pages` pages each; a sequence gets a page when it comes to it."""

    def __init__(self, kind: str, device: str, dtype: torch.dtype, most: int, pages: int) -> None:
        transformers.AttentionInterface.register(NAME, self.attend)
        self.model = model(KINDS[kind](), NAME, device, dtype)
        self.device, self.P = device, 4
        free = torch.randperm(most * pages, generator=torch.Generator().manual_seed(0)).tolist()
        self.free, self.own = free, [[] for _ in range(most)]
        config = self.model.config
        shape = (most * pages, self.P, config.num_key_value_heads, config.head_dim)
        self.caches = [
            torch.full((2, *shape), float("nan"), dtype=dtype, device=device)
            for _ in range(config.num_hidden_layers)
        ]
        self.seen = [0] * most  # keys of each sequence
        # What a step reads, in one place each.
        self.table = torch.zeros(most, pages, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(most, dtype=torch.int32, device=device)
        self.slots: torch.Tensor | None = None
        self.starts: torch.Tensor | None = None  # None: each has as many queries

    def attend(
        self, module, q, k, v, mask, scaling=None, sliding_window=None, softcap=None, s_aux=None, **_
    ):  # fmt: skip
        """The interface of transformers; q is (1, H, tokens, D)."""
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        k_cache, v_cache = self.caches[module.layer_idx]
        anyop.append_kv(k_cache, v_cache, k, v, self.slots)
        out, _ = anyop.attention_paged(
            q, k_cache, v_cache, self.table, self.lengths, self.starts, scale=scaling,
            window_left=-1 if sliding_window is None else sliding_window - 1, softcap=softcap or 0.0,
            sinks=None if s_aux is None else s_aux.float(),
        )  # fmt: skip
        return out[None], None

    def place(self, counts: list[int]) -> tuple[list[int], list[int]]:
        """Room for so many more tokens of each sequence: their positions and slots."""
        positions, slots = [], []
        for b, count in enumerate(counts):
            for t in range(self.seen[b], self.seen[b] + count):
                if t % self.P == 0:
                    self.own[b].append(self.free.pop())
                positions.append(t)
                slots.append(self.own[b][-1] * self.P + t % self.P)
            self.seen[b] += count
        return positions, slots

    def show(self) -> None:
        """Lengths and pages to where the step reads them."""
        self.lengths.copy_(torch.tensor(self.seen, dtype=torch.int32))
        rows = [pages + [0] * (self.table.shape[1] - len(pages)) for pages in self.own]
        self.table.copy_(torch.tensor(rows, dtype=torch.int32))

    def run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The greedy token behind each of the row's tokens."""
        with torch.no_grad():
            made = self.model(tokens[None], position_ids=positions[None], use_cache=False)
        return made.logits[0].float().argmax(-1)

    def step(self, tokens: list[list[int]]) -> list[int | None]:
        """New tokens of each sequence, prompts or single ones or none; the token that follows, where some were."""
        counts = [len(mine) for mine in tokens]
        positions, slots = self.place(counts)
        self.show()
        self.slots = torch.tensor(slots, dtype=torch.int32, device=self.device)
        ends = torch.tensor([0, *counts]).cumsum(0)
        self.starts = ends.int().to(self.device)
        row = torch.tensor([token for mine in tokens for token in mine], device=self.device)
        found = self.run(row, torch.tensor(positions, device=self.device)).tolist()
        return [found[end - 1] if n else None for n, end in zip(counts, ends[1:].tolist())]


def prompts(count: int, longest: int) -> list[list[int]]:
    """Of uneven lengths, from 1 on."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest + 1, (count,), generator=draw).tolist()
    lengths[0], lengths[1] = 1, longest
    return [torch.randint(3, 200, (n,), generator=draw).tolist() for n in lengths]


def assert_greedy(
    kind: str, device: str, dtype: torch.dtype, given: list[list[int]], served: list[list[int]]
) -> None:
    """Each served token is the one that transformers' own attention has behind the tokens before it.

    One pass over prompt and served tokens says so of all: a greedy token depends on those before it alone. Logits
    are rounded in another order here, so one as large as the largest, but for that, is as good.
    """
    plain = model(KINDS[kind](), "sdpa" if kind in ("causal", "window") else "eager", device, dtype)
    whole = [torch.tensor(prompt + mine) for prompt, mine in zip(given, served, strict=True)]
    padded = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)  # behind them: nobody sees it
    with torch.no_grad():
        every = plain(padded.to(device), use_cache=False).logits.double()
    for prompt, mine, logits in zip(given, served, every):
        logits = logits[len(prompt) - 1 : len(prompt) + len(mine) - 1]
        chosen = logits.gather(1, torch.tensor(mine, device=device)[:, None])[:, 0]
        best = logits.max(-1).values
        room = (2.0**-17 if dtype == torch.float32 else 2.0**-5) * best.abs()
        assert (chosen >= best - room).all(), (kind, len(prompt), mine, logits.argmax(-1).tolist())
