# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back, by tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from . import InputError

CONTEXT = 8  # tokens that are decoded again with a new one, as a tokenizer treats the first of a text otherwise


def read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise InputError(f"{path}: {error}") from None


def stream(tokenizer: Tokenizer) -> Callable[[int], str]:
    """The text of each next token. One that ends within a character waits for the rest."""
    ids: list[int] = []
    shown = ""

    def piece(token: int) -> str:
        nonlocal shown
        ids.append(token)
        text = tokenizer.decode(ids)
        if text.endswith("\ufffd") and len(ids) < 4 * CONTEXT:
            return ""
        new = text[len(shown) :]
        del ids[:-CONTEXT]
        shown = tokenizer.decode(ids)
        return new

    return piece
