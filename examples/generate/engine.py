# SPDX-License-Identifier: Apache-2.0
"""Many sequences at once: who has which pages, what a step gets, and when a sequence ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import InputError
from .checkpoint import Tensor
from .config import Config, rope_table
from .frameworks import NumPy
from .model import APART, NOISE, PAGE, Sampling, advance, decode, gated, product

LEAST_PIECE = 32  # tokens of prompts, where a step is compiled for few sizes


@dataclass
class Sequence:
    number: int
    tokens: list[int]  # the prompt, and what was written behind it
    limit: int  # of its length
    prompt: int = 0  # tokens of it
    pages: list[int] = field(default_factory=list)
    end: str = ""  # why it has ended

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)


class Engine:
    """Weights and caches on a device. rows: sequences at once; cache: tokens that it has room for, all together.

    alone: rounding does not depend on the batch. A prompt is read by itself, and steps always have as many rows: so few
    that products give each row the bits that they give it alone.
    """

    def __init__(self, framework: NumPy, config: Config, weights: dict, how: Sampling, seed: int = 0,
                 *, rows: int, length: int, cache: int, chunk: int = 512, alone: bool = False):  # fmt: skip
        self.framework, self.config, self.weights = framework, config, weights
        self.chunk, self.alone = chunk, alone
        while alone and rows > 1 and not self.alike(rows):
            rows //= 2
        self.rows = rows
        self.M = -(-length // PAGE)
        self.free = list(range(-(-cache // PAGE)))[::-1]
        self.room = len(self.free) * PAGE
        self.noise = np.random.default_rng(seed).integers(NOISE)
        random = np.random.default_rng(seed).random((NOISE, 1), np.float32)
        rope = {kind: rope_table(config, kind, self.M * PAGE) for kind in config.rope}
        weights["noise"] = framework.array(random)
        weights["rope"] = {k: tuple(map(framework.array, pair)) for k, pair in rope.items()}
        shape = (len(self.free), PAGE, config.G, config.HD)
        self.caches = [(framework.zeros(shape), framework.zeros(shape)) for _ in config.layers]
        own = framework.xp, config, how
        self.advance = framework.advancing(partial(advance, *own))
        self.decode = partial(decode, *own)
        self.steps: dict[int, Any] = {}  # by the number of sequences

    def alike(self, rows: int) -> bool:
        """Whether products of so many rows give each the bits that they give it alone; kernels choose sums by them."""
        config, own = self.config, self.weights["layers"][-1]
        products = {
            (config.D, product): [own["qkv"], self.weights["head"]],
            (config.D, partial(gated, activation=config.activation)): [own["gate_up"]],
            (config.H * config.HD, product): [own["out"]],
            (config.F, product): [own["down"]],
        }
        for (K, call), weights in products.items():
            random = np.random.default_rng(0).standard_normal((rows, K), np.float32)
            x = self.framework.weight([Tensor(Path(), "F32", random)])
            for weight in weights:
                both, apart = call(x, weight), [call(x[n : n + 1], weight) for n in range(rows)]
                if not all((both[n] == apart[n][0]).all() for n in range(rows)):
                    return False
        return True

    def prepare(self) -> None:
        """Captures all graphs, where there are some, before the first sequence."""
        for size in sorted({self.size(n) for n in range(1, self.rows + 1)}, reverse=True):
            self.decoding(size)

    def write(self, sequences: list[Sequence]) -> Iterator[tuple[Sequence, int | None]]:
        """Each sequence with each of its tokens as it comes; with None where it ends without one."""
        for one in sequences:
            if not one.prompt:
                raise InputError(f"prompt {one.number + 1} has no tokens")
            if one.prompt >= min(one.limit, self.room, self.M * PAGE):
                raise InputError(
                    f"prompt {one.number + 1} has {one.prompt} tokens; the cache has room for {self.room},"
                    f" a sequence for {min(one.limit, self.M * PAGE)}, and it writes one at least"
                )
        waiting, live = deque(sequences), []
        while waiting or live:
            new = []
            while (
                waiting
                and len(live) + len(new) < self.rows
                and self.take(waiting[0], waiting[0].prompt)
            ):
                new.append(waiting.popleft())
            for together in [[one] for one in new] if self.alone else [new]:
                yield from self.read_prompts(together)
            live = self.going(live + new)
            if live:
                yield from self.write_on(live)
                live = self.going(live)

    def going(self, live: list[Sequence]) -> list[Sequence]:
        """Those that have not ended; the others give their pages back."""
        for one in live:
            if one.end:
                self.free += one.pages
                one.pages = []
        return [one for one in live if not one.end]

    def take(self, one: Sequence, length: int) -> bool:
        """Gives a sequence pages for so many tokens; or none, where there are not as many."""
        more = -(-length // PAGE) - len(one.pages)
        if more > len(self.free):
            return False
        one.pages += [self.free.pop() for _ in range(more)]
        return True

    def add(self, one: Sequence, token: int) -> Iterator[tuple[Sequence, int | None]]:
        if one.end:  # a step was begun before it was known
            return
        one.tokens.append(token)
        if token in self.config.stops:
            one.end = "stop token"
        elif len(one.tokens) >= one.limit:
            one.end = "length"
        yield one, token

    def table(self, sequences: list[Sequence], size: int) -> np.ndarray:
        table = np.zeros((size, self.M), np.int32)
        for row, one in zip(table, sequences):
            row[: len(one.pages)] = one.pages
        return table

    def noises(self, sequences: list[Sequence], size: int) -> np.ndarray:
        first = [(self.noise + one.number * APART) % NOISE for one in sequences]
        return padded(first, size)

    def size(self, count: int) -> int:
        if self.alone:
            return self.rows
        return min(1 << (count - 1).bit_length(), self.rows) if self.framework.few_sizes else count

    # --- prompts: pieces of at most `chunk` tokens, of as many sequences as fit into each ---

    def read_prompts(self, new: list[Sequence]) -> Iterator[tuple[Sequence, int | None]]:
        todo = [(row, place) for row, one in enumerate(new) for place in range(one.prompt)]
        size = self.rows if self.framework.few_pieces else len(new)
        lengths = np.zeros(size, np.int32)
        for begin in range(0, len(todo), self.chunk):
            piece = todo[begin : begin + self.chunk]
            counts = np.bincount([row for row, _ in piece], minlength=size)
            lengths += counts.astype(np.int32)
            ends = np.cumsum(counts)
            T = len(piece)
            if self.framework.few_pieces:
                T = min(self.chunk, max(LEAST_PIECE, 1 << (T - 1).bit_length()))
            slots = [new[row].pages[at // PAGE] * PAGE + at % PAGE for row, at in piece]
            step = {
                "tokens": padded([new[row].tokens[at] for row, at in piece], T),
                "positions": padded([at for _, at in piece], T),
                "slots": padded(slots, T, -1),
                "table": self.table(new, size),
                "lengths": lengths * (counts > 0),  # of others nothing is asked
                "starts": np.concatenate([[0], ends]).astype(np.int32),
                "last": np.maximum(ends - 1, 0).astype(np.int32),
                "noise": self.noises(new, size),
                "rows": np.arange(size, dtype=np.int32),
            }
            made = {name: self.framework.array(array) for name, array in step.items()}
            self.caches, tokens = self.advance(self.weights, self.caches, made)
            done = [row for row, at in piece if at + 1 == new[row].prompt]
            found = self.framework.read(tokens) if done else []
            for row in done:
                yield from self.add(new[row], found[row])

    # --- one token of each sequence at a time, until one ends ---

    def decoding(self, size: int) -> Any:
        if size not in self.steps:
            self.steps[size] = made = self.framework.decoding(self.decode, self.weights)
            made.load(**self.state([], size))
            if hasattr(made, "capture"):
                made.capture(self.caches)
        return self.steps[size]

    def state(self, live: list[Sequence], size: int) -> dict[str, np.ndarray]:
        return {
            "tokens": padded([one.tokens[-1] for one in live], size),
            "lengths": padded([len(one.tokens) - 1 for one in live], size),
            "active": padded([1] * len(live), size),
            "table": self.table(live, size),
            "noise": self.noises(live, size),
            "rows": np.arange(size, dtype=np.int32),
        }

    def write_on(self, live: list[Sequence]) -> Iterator[tuple[Sequence, int | None]]:
        size = self.size(len(live))
        step, begun, running = self.decoding(size), 0, deque()
        had = {one.number: len(one.tokens) for one in live}
        step.load(**self.state(live, size))
        while not any(one.end for one in live):
            pages = len(self.free)
            more = [(one, had[one.number] + begun) for one in live]
            go = all(n < one.limit for one, n in more) and all(self.take(*each) for each in more)
            if len(self.free) < pages:
                step.load(table=self.table(live, size))
            if go:
                self.caches, tokens = step(self.caches)
                running.append(tokens)
                begun += 1
            if len(running) > self.framework.ahead * go:
                yield from self.arrived(live, running.popleft())
            elif not go:
                longest = max(live, key=lambda one: len(one.tokens))
                longest.end = f"the cache is full ({self.room} tokens): the longest sequence ends"
                yield longest, None
        while running:
            yield from self.arrived(live, running.popleft())

    def arrived(self, live: list[Sequence], tokens: Any) -> Iterator[tuple[Sequence, int | None]]:
        for one, token in zip(live, self.framework.read(tokens)):
            yield from self.add(one, token)


def padded(numbers: list[int], size: int, value: int = 0) -> np.ndarray:
    return np.array(numbers + [value] * (size - len(numbers)), np.int32)
