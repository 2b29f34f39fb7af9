# SPDX-License-Identifier: Apache-2.0
"""Many sequences at once: who has which pages, what a step gets, and when a sequence ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from . import InputError
from .config import Config, rope_table
from .model import PAGE, advance, decode, scored


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


Written = Iterator[tuple[Sequence, int | None]]  # a token, or None where one ends without


class Engine:
    """Weights and caches on a device; options of the command line, for as many sequences of as many tokens."""

    def __init__(self, framework, config: Config, weights: dict, options, rows: int, length: int):
        self.framework, self.config, self.weights = framework, config, weights
        self.rows, self.chunk, self.seed = rows, options.chunk, options.seed
        self.M = -(-length // PAGE)
        cache = options.cache or rows * (length + PAGE)
        self.free = list(range(-(-cache // PAGE)))[::-1]
        self.room = len(self.free) * PAGE
        rope = {k: rope_table(x, self.M * PAGE) for k, x in config.rope.items()}
        weights["rope"] = {k: tuple(map(framework.array, pair)) for k, pair in rope.items()}
        shape = (len(self.free), PAGE, config.G, config.HD)
        self.caches = [(framework.zeros(shape), framework.zeros(shape)) for _ in config.layers]
        how = options.temperature, options.top_k, options.top_p, options.min_p
        numbers = zip(how, ("float32", "int32", "float32", "float32"))
        own = framework.xp, config, [framework.array(np.array(x, dtype)) for x, dtype in numbers]
        self.advance = framework.compiled(partial(advance, *own))
        sizes = sorted({self.size(n) for n in range(1, rows + 1)}, reverse=True)
        made = partial(framework.compiled, partial(decode, *own), weights, self.caches)
        self.steps = {size: made(self.arrays(self.state([], size))) for size in sizes}

    def arrays(self, step: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: self.framework.array(array) for name, array in step.items()}

    def size(self, count: int) -> int:
        """Rows of a step for so many sequences."""
        return min(power_of_two(count), self.rows) if self.framework.few_sizes else count

    def state(self, live: list[Sequence], size: int) -> dict[str, np.ndarray]:
        """What a step of decoding reads, as model.decode has it."""
        table = np.zeros((size, self.M), np.int32)
        for row, one in zip(table, live):
            row[: len(one.pages)] = one.pages
        draws = [np.random.default_rng([self.seed, one.number]).integers(2**31) for one in live]
        return {
            "tokens": padded([one.tokens[-1] for one in live], size),
            "lengths": padded([len(one.tokens) - 1 for one in live], size),
            "active": padded([1] * len(live), size),
            "table": table,
            "seed": padded(draws, size),
            "rows": np.arange(size, dtype=np.int32),
        }

    def piece(self, new: list[Sequence], places: list[tuple[int, int]]) -> dict[str, np.ndarray]:
        """What a step reads for tokens of prompts, each given by its row and place, as model.advance has it."""
        size, T = len(new), len(places)
        if self.framework.few_pieces:
            size, T = self.rows, max(T, min(self.chunk, max(32, power_of_two(T))))
        slots = [new[row].pages[at // PAGE] * PAGE + at % PAGE for row, at in places]
        starts = np.searchsorted([row for row, _ in places], np.arange(size + 1))
        behind = {row: at + 1 for row, at in places}  # its last; of other rows nothing is asked
        return self.state(new, size) | {
            "tokens": padded([new[row].tokens[at] for row, at in places], T),
            "positions": padded([at for _, at in places], T),
            "slots": padded(slots, T, -1),
            "lengths": padded([behind.get(row, 0) for row in range(size)], size),
            "starts": starts.astype(np.int32),
            "last": np.maximum(starts[1:] - 1, 0).astype(np.int32),
        }

    def write(self, sequences: list[Sequence]) -> Written:
        """Each sequence with each of its tokens as it comes; with None where it ends without one."""
        for one in sequences:
            longest = min(one.limit, self.M * PAGE)
            if not 0 < one.prompt < min(longest, self.room):
                raise InputError(
                    f"prompt {one.number + 1} has {one.prompt} tokens; the cache has room for {self.room},"
                    f" a sequence for {longest}, and it reads and writes one at least"
                )
        waiting, live = deque(sequences), []
        while waiting or live:
            new: list[Sequence] = []
            while waiting and len(live) + len(new) < self.rows and self.take(waiting[0]):
                new.append(waiting.popleft())
            yield from self.read_prompts(new)
            live += new
            yield from self.write_on(live)
            for one in live:
                if one.end:
                    self.free += one.pages
                    one.pages = []
            live = [one for one in live if not one.end]

    def take(self, one: Sequence, more: int = 0) -> bool:
        """Gives a sequence pages for its tokens and `more`; or none, where there are not as many."""
        count = -(-(len(one.tokens) + more) // PAGE) - len(one.pages)
        if count > len(self.free):
            return False
        one.pages += [self.free.pop() for _ in range(count)]
        return True

    def add(self, one: Sequence, token: int) -> Written:
        if one.end:  # a step was begun before it was known
            return
        if token < 0:
            one.end = "logits that are no numbers"
        else:
            one.tokens.append(token)
            if token in self.config.stops:
                one.end = "stop token"
            elif len(one.tokens) >= one.limit:
                one.end = "length"
        yield one, token if token >= 0 else None

    def read_prompts(self, new: list[Sequence]) -> Written:
        """In pieces of at most `chunk` tokens, of as many sequences as fit into each."""
        todo = [(row, at) for row, one in enumerate(new) for at in range(one.prompt)]
        for begin in range(0, len(todo), self.chunk):
            places = todo[begin : begin + self.chunk]
            step = self.arrays(self.piece(new, places))
            self.caches, tokens = self.advance(self.weights, self.caches, step)
            done = [row for row, at in places if at + 1 == new[row].prompt]
            found = self.framework.fetched(tokens)() if done else []
            for row in done:
                yield from self.add(new[row], found[row])

    def write_on(self, live: list[Sequence]) -> Written:
        """One token of each sequence at a time, until one ends, or none where one has."""
        size = self.size(len(live))
        step, state = self.steps[size], self.arrays(self.state(live, size))
        running: deque = deque()  # of each step whose tokens were not read yet, what reads them
        while running or not any(one.end for one in live):
            pages, ahead = len(self.free), len(running)
            go = not any(one.end for one in live) and all(
                len(one.tokens) + ahead < one.limit and self.take(one, ahead) for one in live
            )
            if len(self.free) < pages:
                state["table"] = self.framework.array(self.state(live, size)["table"])
            if go:
                self.caches, state = step(self.weights, self.caches, state)
                running.append(self.framework.fetched(state["tokens"]))
            if len(running) > self.framework.ahead * go:
                for one, token in zip(live, running.popleft()()):
                    yield from self.add(one, token)
            elif not go:
                longest = max(live, key=lambda one: len(one.tokens))
                longest.end = f"the cache is full ({self.room} tokens): the longest sequence ends"
                yield longest, None

    def perplexity(self, tokens: list[int]) -> float:
        """Of a text's tokens, each behind those before it; one sequence has room for them."""
        one = Sequence(0, tokens[:-1], len(tokens))
        if not self.take(one):
            raise InputError(f"a text of {len(tokens)} tokens; the cache has room for {self.room}")
        step = self.piece([one], [(0, at) for at in range(one.prompt)])
        step["targets"] = padded(tokens[1:], len(step["tokens"]))
        run = self.framework.compiled(partial(scored, self.config))
        self.caches, losses = run(self.weights, self.caches, self.arrays(step))
        return math.exp(sum(losses.tolist()[: one.prompt]) / one.prompt)


def power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def padded(numbers: list[int], size: int, value: int = 0) -> np.ndarray:
    return np.array(numbers + [value] * (size - len(numbers)), np.int32)
