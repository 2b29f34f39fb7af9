# SPDX-License-Identifier: Apache-2.0
"""From text to padded batches of token numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as FileTokenizer

from . import InputError

TEXTS_AT_ONCE = 1024  # bounds the memory of the tokenizer's own records, about 10 KB a text


class Tokens(NamedTuple):
    """Token numbers of one text, and how many it had before the model's limit cut it."""

    ids: np.ndarray  # (T,) int64
    count: int

    @property
    def truncated(self) -> bool:
        return self.count > len(self.ids)


class Tokenizer:
    """A tokenizer.json file with our own limit and padding in place of those written in it."""

    def __init__(self, content: bytes, limit: int):
        try:
            self._tokenizer = FileTokenizer.from_buffer(content)
        except Exception as error:  # the library raises Exception itself
            raise InputError(f"tokenizer.json cannot be read: {error}") from None
        self.limit = limit
        self.vocabulary = self._tokenizer.get_vocab_size()
        self.special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if self.special == 0:  # a text could have no token at all
            raise InputError("tokenizer.json adds no special tokens, a BERT needs [CLS] and [SEP]")
        if limit <= self.special:
            raise InputError(f"the model's limit of {limit} tokens leaves no room for text")
        # Files often carry padding to a fixed length, which costs time, and a limit of training.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=limit)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        tokens = []
        for begin in range(0, len(texts), TEXTS_AT_ONCE):
            for text in self._tokenizer.encode_batch(list(texts[begin : begin + TEXTS_AT_ONCE])):
                rest = sum(len(piece.ids) - self.special for piece in text.overflowing)
                ids = np.array(text.ids, dtype=np.int64)
                tokens.append(Tokens(ids, len(ids) + rest))
        return tokens


def batches(tokens: Sequence[Tokens], batch_size: int) -> Iterator[list[int]]:
    """Positions of texts in batches of like length, the longest first.

    Texts of like length need little padding; with the longest first, buffers never grow.
    """
    order = sorted(range(len(tokens)), key=lambda i: len(tokens[i].ids), reverse=True)
    for begin in range(0, len(order), batch_size):
        yield order[begin : begin + batch_size]


def pad(batch: Sequence[Tokens], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Token numbers (B, T) int64, and which of them are text (B, T) bool."""
    lengths = np.array([len(tokens.ids) for tokens in batch])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = np.concatenate([tokens.ids for tokens in batch])
    return ids, mask
