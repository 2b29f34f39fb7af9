# SPDX-License-Identifier: Apache-2.0
"""Turns passages into an index of vectors, and finds those nearest to a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from . import InputError
from .corpus import Passage, Reading
from .frameworks import Framework
from .model import Encoder
from .tokens import Tokenizer, Tokens, batches, pad


@dataclass
class Index:
    passages: list[Passage]
    vectors: np.ndarray  # (passages, D) float32, rows of unit length
    skipped: list[str]  # files left out, and why
    truncated: int  # passages longer than the model's limit
    seconds: float  # tokenizer and model, while the index was made

    @property
    def sentences_per_second(self) -> float:
        return len(self.passages) / max(self.seconds, 1e-9)


def embed(
    encoder: Encoder,
    tokens: list[Tokens],
    batch_size: int,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Vectors (texts, D) float32 in the order of the texts; progress gets the number done."""
    vectors = np.empty((len(tokens), encoder.config.D), np.float32)
    done = 0
    for batch in batches(tokens, batch_size):
        vectors[batch] = encoder(*pad([tokens[i] for i in batch], encoder.config.pad_id))
        done += len(batch)
        progress(done)
    if not np.isfinite(vectors).all():
        raise InputError("the model gives vectors that are not finite: its weights are damaged")
    return vectors


def build(
    encoder: Encoder,
    tokenizer: Tokenizer,
    reading: Reading,
    batch_size: int,
    progress: Callable[[int], None],
) -> Index:
    begin = perf_counter()
    tokens = tokenizer.encode([passage.text for passage in reading.passages])
    vectors = embed(encoder, tokens, batch_size, progress)
    truncated = sum(text.truncated for text in tokens)
    seconds = perf_counter() - begin
    return Index(reading.passages, vectors, reading.skipped, truncated, seconds)


def search(
    ops, framework: Framework, passages: list[Passage], query, vectors, top: int
) -> list[tuple[float, Passage]]:
    """The passages nearest to query (1, D), best first, with the cosine of the angle to it.

    query and vectors (passages, D) are the framework's.
    """
    count, all_scores = min(top, len(passages)), (1, len(passages))
    # One product with every passage.
    scores = ops.linear(query, vectors, **framework.out((all_scores, np.float32)))
    out = framework.out(((1, count), np.float32), ((1, count), np.int64))
    values, positions = map(framework.array, ops.topk(scores, count, **out))
    found = zip(values[0].tolist(), positions[0].tolist(), strict=True)
    return [(score, passages[position]) for score, position in found]
