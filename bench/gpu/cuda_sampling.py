# SPDX-License-Identifier: Apache-2.0
"""Times sampling on CUDA, and drafted tokens verified, beside torch and FlashInfer: rows of 128,256 logits.

    python bench/gpu/cuda_sampling.py [--rows 1,64,512] [--rounds 15] [--dry]

A side is captured into a CUDA graph, and its results are checked: what is written against torch's, drawn tokens against
the set that the filters leave. Sides then replay in turns, behind 20 ms of idling, the second cache flushed. The median
above that of a kernel of one element is also shown as a share of what a + b -> c reaches, by the bytes that are read
and written once. One line of JSON for each side is added to bench/results/cuda_sampling.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import torch
from cuda_products import paced_turns
from cuda_rows import FLUSH_BYTES, capture, ceiling, device
from harness import environment, write

V, K, P = 128_256, 50, 0.9
DRAFTED = 5  # tokens
# What is asked for: microseconds, shares of the ceiling.
FIGURES = {
    ("top_k_top_p", 1): ("us", 12), ("top_k_top_p", 64): ("us", 20), ("top_k_top_p", 512): ("us", 110),
    ("no filter", 64): ("share", 0.75), ("top_p_renorm", 64): ("share", 0.75), ("penalize", 64): ("share", 0.75),
    ("verify_chain", 64): ("share", 0.60),
}  # fmt: skip

try:
    import flashinfer.sampling as flashinfer
except ImportError as missing:
    flashinfer = None
    print(f"left out: flashinfer: {missing}")

Sides = dict[str, Callable]
# What is timed, the bytes of it, what is right, sides.
Case = tuple[str, int, Callable[[torch.Tensor], bool], Sides]


def among(kept: torch.Tensor) -> Callable[[torch.Tensor], bool]:
    """Whether every drawn token is one of those that its row keeps."""
    return lambda tokens: bool(kept.gather(1, tokens.long().reshape(-1, 1)).all())


def near(exact: torch.Tensor) -> Callable[[torch.Tensor], bool]:
    return lambda found: torch.allclose(found.float(), exact.float(), rtol=1e-4, atol=1e-7)


def kept_by_p(probs: torch.Tensor) -> torch.Tensor:
    """Those of the least set that reaches P; ends of it may differ by rounding, so one more is let in."""
    values, tokens = probs.double().sort(-1, descending=True)
    before = values.cumsum(-1) - values
    kept = before < P + 1e-5
    return torch.zeros_like(kept).scatter_(1, tokens, kept)


def renormed(probs: torch.Tensor) -> Callable[[torch.Tensor], bool]:
    """Whether what is left is in kept_by_p's set, and all of its row's sum."""
    kept = kept_by_p(probs)

    def is_right(found: torch.Tensor) -> bool:
        left = probs.masked_fill(found == 0, 0)
        return near(left / left.sum(-1, keepdim=True))(found) and not found[~kept].any()

    return is_right


def by_sort(logits: torch.Tensor, k: int | None, p: float | None) -> torch.Tensor:
    """top_k, then top_p, as in many a serving loop."""
    values, tokens = logits.sort(-1, descending=True)
    if k:
        values[:, k:] = -torch.inf
    probs = values.softmax(-1)
    if p:
        probs[probs.cumsum(-1) - probs >= p] = 0
    return tokens.gather(-1, by_noise(probs))


def by_noise(probs: torch.Tensor) -> torch.Tensor:
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True)


def penalized(logits, mask, counts, repetition, frequency, presence):
    factor = torch.where(mask | (counts > 0), repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)


class Rows:
    """Cases of B rows."""

    def __init__(self, B: int):
        self.B = B
        self.logits = torch.randn(B, V, device="cuda") * 3
        self.probs = self.logits.softmax(-1)
        self.seed = torch.arange(B, device="cuda")
        self.offset = torch.zeros(B, dtype=torch.int64, device="cuda")
        self.k = torch.full((B,), K, dtype=torch.int32, device="cuda")
        self.p = torch.full((B,), P, device="cuda")
        self.bytes = 4 * B * V

    def sample(self, **given) -> Callable:
        return lambda: anyop.sample(self.logits, self.seed, self.offset, logprob=False, **given)[0]

    def cases(self) -> Iterator[Case]:
        logits, probs, k, p = self.logits, self.probs, self.k, self.p
        drawn = {"seed": 7, "offset": 0}
        all_of = torch.ones_like(logits, dtype=torch.bool)
        best = logits.topk(K, -1).indices
        of_k = torch.zeros_like(all_of).scatter_(1, best, True)
        of_both = kept_by_p(logits.masked_fill(~of_k, -torch.inf).softmax(-1))
        yield "no filter", self.bytes, among(all_of), {
            "anyop": self.sample(),
            "torch": lambda: by_noise(logits.softmax(-1)),
        } | self.peer(lambda f: f.sampling_from_logits(logits, **drawn))  # fmt: skip
        yield "top_k_top_p", self.bytes, among(of_both), {
            "anyop": self.sample(top_k=k, top_p=p),
            "torch": lambda: by_sort(logits, K, P),
        } | self.peer(lambda f: f.top_k_top_p_sampling_from_logits(logits, k, p, **drawn))  # fmt: skip
        yield "top_p", self.bytes, among(kept_by_p(probs)), {
            "anyop": self.sample(top_p=p),
            "anyop, of probs": lambda: anyop.sample_probs(probs, self.seed, self.offset, top_p=p),
            "torch": lambda: by_sort(logits, None, P),
        } | self.peer(lambda f: f.top_p_sampling_from_probs(probs, p, **drawn), ", of probs")  # fmt: skip
        yield from self.written()

    def peer(self, call: Callable, more: str = "") -> Sides:
        return {f"flashinfer{more}": lambda: call(flashinfer)} if flashinfer else {}

    def written(self) -> Iterator[Case]:
        logits, probs, k, p = self.logits, self.probs, self.k, self.p
        yield "top_p_renorm", 2 * self.bytes, renormed(probs), {
            "anyop": lambda: anyop.top_p_renorm(probs, p),
        } | self.peer(lambda f: f.top_p_renorm_probs(probs, p))  # fmt: skip
        least = logits.topk(K, -1).values[:, -1:]
        yield "top_k_mask", 2 * self.bytes, near(logits.masked_fill(logits < least, -torch.inf)), {
            "anyop": lambda: anyop.top_k_mask(logits, k),
            "torch": lambda: logits.masked_fill(
                logits < logits.topk(K, -1).values[:, -1:], -torch.inf
            ),
        } | self.peer(lambda f: f.top_k_mask_logits(logits, k))  # fmt: skip
        yield from self.lowered()

    def lowered(self) -> Iterator[Case]:
        """In place: what is written is lowered again by each replay, so that one side is checked at its first call."""
        mask = torch.rand(self.B, V, device="cuda") < 0.1
        counts = (torch.rand(self.B, V, device="cuda") < 0.1).int() * 2
        ones = torch.ones(self.B, device="cuda")
        given = mask, counts, ones * 1.1, ones * 0.1, ones * 0.2
        exact = penalized(self.logits, *given)
        own = self.logits.clone()
        anyop.penalize(own, *given)
        assert near(exact)(own), "penalize is wrong"
        yield "penalize", 13 * self.B * V, lambda _: True, {
            "anyop": lambda: anyop.penalize(own, *given) or own,
            "torch": lambda: penalized(self.logits, *given),
        }  # fmt: skip
        bits = torch.randint(-(1 << 31), 1 << 31, (self.B, -(-V // 32)), device="cuda").int()
        yield "token_bitmask", self.bytes + self.bytes // 32, lambda _: True, {
            "anyop": lambda: anyop.token_bitmask(own, bits) or own,
        }  # fmt: skip


def chains(B: int) -> Iterator[Case]:
    """Tokens of a draft that is near the target. Of each sequence two rows are read: of the token that is drawn."""
    target = (torch.randn(B, DRAFTED + 1, V, device="cuda") * 3).softmax(-1)
    draft = target[:, :DRAFTED].sqrt()
    draft /= draft.sum(-1, keepdim=True)
    tokens = by_noise(draft.flatten(0, 1)).reshape(B, DRAFTED)
    few = tokens.int()
    seed, offset = torch.arange(B, device="cuda"), torch.zeros(B, dtype=torch.int64, device="cuda")

    def is_chain(found: torch.Tensor) -> bool:
        """Drafted tokens as far as they go, then one more, then -1."""
        ends = (found >= 0).sum(1) - 1
        same = found[:, :DRAFTED] == tokens
        there = torch.arange(DRAFTED, device="cuda") < ends[:, None]
        return bool((same | ~there).all() and (ends >= 0).all())

    sides = {
        "anyop": lambda: anyop.verify_chain(draft, tokens, target, seed, offset)[0],
        "torch": lambda: chain_by_torch(draft, tokens, target),
    }
    if flashinfer:
        sides["flashinfer"] = lambda: flashinfer.chain_speculative_sampling(
            draft, few, target, seed=7, offset=0
        )[0]
    yield "verify_chain", 2 * 4 * B * V, is_chain, sides


def chain_by_torch(draft, tokens, target):
    """verify_chain's tokens by torch's operators, without a wait."""
    B, N, V = draft.shape
    p, q = (probs[:, :N].gather(2, tokens[..., None])[..., 0] for probs in (draft, target))
    count = (torch.rand_like(p) * p < q).long().cumprod(1).sum(1, keepdim=True)
    at = count[..., None].expand(B, 1, V)
    taken = draft.gather(1, at.clamp(max=N - 1))[:, 0] * (count < N)
    rest = (target.gather(1, at)[:, 0] - taken).clamp_(min=0)
    steps = torch.arange(N + 1, device=tokens.device)
    given = torch.cat([tokens, by_noise(rest)], 1)
    return torch.where(steps < count, given, torch.where(steps == count, given[:, -1:], -1))


def measure(case: Case, B: int, rounds: int, flush, limit: float, idle_us: float) -> Iterator[dict]:
    name, moved, is_right, sides = case
    graphs = {}
    for side, call in sides.items():
        try:
            graph, found = capture(call)
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:  # a peer that no graph can hold
            print(f"left out: {name} by {side}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if is_right(found):
            graphs[side] = graph
        elif side.startswith("anyop"):
            raise SystemExit(f"{name} of {B} rows is wrong; nothing was timed")
        else:
            print(f"left out: {name} by {side}: another result")
    times = paced_turns(graphs, rounds, flush)
    best = min((t for side, t in times.items() if not side.startswith("anyop")), default=None)
    for side, median in times.items():
        above = max(median - idle_us, 0.01)
        yield {
            "case": name, "rows": B, "V": V, "dtype": "float32", "side": side, "median_us": round(median, 2),
            "above_idle_us": round(above, 2), "share_of_ceiling": round(moved / above / limit, 3),
            "of_best_peer": round(best / median, 3) if best else None,
        }  # fmt: skip


def show(row: dict) -> None:
    kind, figure = FIGURES.get((row["case"], row["rows"]), ("", 0))
    verdict = ""
    if kind and row["side"] == "anyop":
        met = row["median_us"] <= figure if kind == "us" else row["share_of_ceiling"] >= figure
        verdict = f"  {'met' if met else 'MISSED'} {kind} {figure}"
    beside = f"{row['of_best_peer']:8.2f}" if row["of_best_peer"] else " " * 8
    print(
        f"{row['rows']:4} {row['case']:14}{row['side']:22}{row['median_us']:9.2f} us"
        f"{row['above_idle_us']:9.2f}{row['share_of_ceiling']:8.1%}{beside}{verdict}", flush=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,64,512")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: there is no CUDA device that torch can use")
        return
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    limit, one = ceiling(options.rounds, flush), torch.zeros(1, device="cuda")
    idle_us = paced_turns({"": capture(lambda: one.add_(0))[0]}, options.rounds, flush)[""]
    print(f"ceiling {limit / 1e3:.0f} GB/s, a kernel of one element {idle_us:.2f} us")
    rows = []
    for B in (int(B) for B in options.rows.split(",")):
        for case in (*Rows(B).cases(), *(chains(B) if B == 64 else ())):
            for row in measure(case, B, options.rounds, flush, limit, idle_us):
                show(row)
                rows.append(row | {"ceiling_gb_per_s": round(limit / 1e3)})
    if not options.dry:
        where = environment(anyop, torch) | device() | {"idle_us": round(idle_us, 2)}
        print("written to", write("cuda_sampling", rows, where))


if __name__ == "__main__":
    main()
