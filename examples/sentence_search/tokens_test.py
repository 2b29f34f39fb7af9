# SPDX-License-Identifier: Apache-2.0
"""Texts become token numbers: limits, padding, batches."""

from __future__ import annotations

import numpy as np
import pytest

from . import InputError
from .tiny_bert import write_tokenizer
from .tokens import Tokenizer, batches, pad


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    write_tokenizer(tmp_path / "tokenizer.json")
    return Tokenizer((tmp_path / "tokenizer.json").read_bytes(), limit=256)


def test_tokenizer_neither_pads_nor_cuts_at_128(tokenizer):
    lengths = [len(text.ids) for text in tokenizer.encode(["", "time", "time " * 200])]
    assert lengths == [2, 3, 202]


def test_truncation_is_noticed_and_counted(tokenizer):
    at_limit, above, far_above = tokenizer.encode(["time " * 254, "time " * 255, "time " * 9999])
    assert (len(at_limit.ids), at_limit.count, at_limit.truncated) == (256, 256, False)
    assert (len(above.ids), above.count, above.truncated) == (256, 257, True)
    assert (len(far_above.ids), far_above.count, far_above.truncated) == (256, 10001, True)
    assert above.ids[-1] == at_limit.ids[-1]  # [SEP] stays last


def test_texts_beyond_one_helping_keep_their_order(tokenizer, monkeypatch):
    monkeypatch.setattr("examples.sentence_search.tokens.TEXTS_AT_ONCE", 3)
    lengths = [len(text.ids) for text in tokenizer.encode(["time " * i for i in range(8)])]
    assert lengths == list(range(2, 10))


def test_batches_hold_each_text_once_longest_first(tokenizer):
    tokens = tokenizer.encode(["time " * (i * 7 % 11) for i in range(11)])
    positions = list(batches(tokens, 4))
    assert [len(batch) for batch in positions] == [4, 4, 3]
    flat = [i for batch in positions for i in batch]
    assert sorted(flat) == list(range(11))
    lengths = [len(tokens[i].ids) for i in flat]
    assert lengths == sorted(lengths, reverse=True)


def test_pad_marks_what_is_text(tokenizer):
    tokens = tokenizer.encode(["", "time of"])
    ids, mask = pad(tokens, pad_id=0)
    assert ids.dtype == np.int64 and mask.dtype == np.bool_
    assert mask.tolist() == [[True, True, False, False], [True] * 4]
    assert ids[0, 2:].tolist() == [0, 0] and ids[1].tolist() == tokens[1].ids.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{}", "cannot be read"), (b"\xff", "cannot be read"), (b"", "cannot be read")],
)
def test_bad_tokenizer_files_are_refused(content, message):
    with pytest.raises(InputError, match=message):
        Tokenizer(content, 256)


def test_limit_without_room_is_refused(tmp_path):
    write_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(InputError, match="no room"):
        Tokenizer((tmp_path / "tokenizer.json").read_bytes(), 2)
