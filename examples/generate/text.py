# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back: tokenizer.json by the tokenizers package, or bytes as they are."""

from __future__ import annotations

import codecs
from pathlib import Path

from . import InputError
from .config import read_json

CONTEXT = 8  # tokens that are decoded again with a new one, as a tokenizer treats the first of a text otherwise


class Bytes:
    """byte_tokenizer.json: a token below 256 is that byte of UTF-8; `begin` stands before each text."""

    def __init__(self, folder: Path):
        path = folder / "byte_tokenizer.json"
        self.begin = read_json(path).get("begin")
        if not isinstance(self.begin, int | None):
            raise InputError(f"{path}: begin is {self.begin!r}, expected the number of a token")

    def encode(self, text: str) -> list[int]:
        return [self.begin] * (self.begin is not None) + list(text.encode())

    def stream(self):
        """A function that gives the text of each next token; a character's text comes with its last byte."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda token: decoder.decode(bytes([token])) if token < 256 else ""


class Words:
    """tokenizer.json of any model."""

    def __init__(self, path: Path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError(f"{path} needs tokenizers: pip install tokenizers") from None
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise InputError(f"{path}: {error}") from None

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def stream(self):
        """As above; a text that ends within a character waits for the rest."""
        ids: list[int] = []
        shown = ""

        def piece(token: int) -> str:
            nonlocal shown
            ids.append(token)
            text = self.tokenizer.decode(ids)
            if text.endswith("\ufffd") and len(ids) < 4 * CONTEXT:
                return ""
            new = text[len(shown) :]
            del ids[:-CONTEXT]
            shown = self.tokenizer.decode(ids)
            return new

        return piece


def read_tokenizer(folder: Path) -> Bytes | Words:
    if (folder / "tokenizer.json").exists():
        return Words(folder / "tokenizer.json")
    if (folder / "byte_tokenizer.json").exists():
        return Bytes(folder)
    raise InputError(f"{folder} has neither tokenizer.json nor byte_tokenizer.json")
