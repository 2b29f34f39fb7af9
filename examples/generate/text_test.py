# SPDX-License-Identifier: Apache-2.0
"""Text comes token by token and is the whole text in the end, from bytes and from words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

from examples.generate import InputError  # noqa: E402
from examples.generate.text import CONTEXT, read_tokenizer, stream  # noqa: E402

SMALL = Path(__file__).parent / "small"
TEXT = "Größe: 3 µs — 数字 and 🙂, twice as long as what is decoded again. " * 2


def test_bytes():
    """Of the small model: a token below 256 is that byte."""
    tokenizer = read_tokenizer(SMALL)
    assert tokenizer.encode("é").ids == [256, 0xC3, 0xA9]
    assert tokenizer.encode(TEXT).ids == [256, *TEXT.encode()]
    piece = stream(tokenizer)
    assert [piece(token) for token in (0xC3, 0xA9, 256, 65)] == ["", "é", "", "A"]
    piece = stream(tokenizer)
    assert [piece(token) for token in (0xC3, 65)] == ["", "\ufffdA"]
    piece = stream(tokenizer)
    assert "".join(map(piece, tokenizer.encode(TEXT).ids)) == TEXT


@pytest.mark.parametrize("kind", ["ByteLevel", "Metaspace"])
def test_tokenizer_json(tmp_path, kind):
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE(unk_token="?"))
    made.pre_tokenizer, made.decoder = getattr(pre_tokenizers, kind)(), getattr(decoders, kind)()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "ByteLevel" else sorted(set(TEXT))
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, special_tokens=["?"])
    made.train_from_iterator(["as long as what is decoded again"] * 3, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path)
    ids = tokenizer.encode(TEXT).ids
    assert len(ids) > 4 * CONTEXT
    pieces = list(map(stream(tokenizer), ids))
    assert "".join(pieces) == made.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_text_that_never_becomes_whole_comes_all_the_same(tmp_path):
    vocabulary = {"Ã": 0, "A": 1}  # the byte 0xC3, as the kind ByteLevel writes it
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "post_processor": None,
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                },
                "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
                "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            }
        )
    )
    piece = stream(read_tokenizer(tmp_path))
    assert "\ufffd" in "".join(piece(0) for _ in range(10 * CONTEXT))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path)
