# SPDX-License-Identifier: Apache-2.0
"""A cached index is what was written, or is noticed to be damaged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from . import cache
from .corpus import Passage
from .index import Index


@pytest.fixture
def example_index(tmp_path, monkeypatch) -> Index:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    passages = [Passage("module", "function", "text ünï 🙂"), Passage("a.txt", "line 3", "more")]
    vectors = np.random.default_rng(1).random((2, 5), np.float32)
    return Index(passages, vectors, ["x: empty"], 1, 2.5)


def test_cache_gives_back_what_it_got(example_index):
    assert cache.load("name") is None
    cache.save("name", example_index)
    found = cache.load("name")
    assert (found.passages, found.skipped) == (example_index.passages, example_index.skipped)
    assert (found.truncated, found.seconds) == (1, 2.5)
    assert found.vectors.tobytes() == example_index.vectors.tobytes()
    assert found.vectors.shape == (2, 5) and found.vectors.flags.writeable
    assert os.listdir(cache.cache_folder()) == ["name"]  # nothing unfinished is left


def test_every_damage_is_noticed(example_index):
    cache.save("name", example_index)
    path = Path(cache.cache_folder()) / "name"
    content = path.read_bytes()
    damaged = [content[:length] for length in range(len(content))]
    damaged += [content + b"x", b"x" * len(content)]
    for at in range(len(content)):
        damaged.append(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(cache.DamagedError):
            cache.load("name")
    path.write_bytes(content)
    assert cache.load("name") is not None


def test_failed_save_leaves_the_old_index(example_index, monkeypatch):
    cache.save("name", example_index)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        cache.save("name", example_index)
    assert os.listdir(cache.cache_folder()) == ["name"]
    assert cache.load("name").passages == example_index.passages


def test_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_folder() == "/xdg/anyop/sentence_search"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.cache_folder() == "/home/somebody/.cache/anyop/sentence_search"
    monkeypatch.setenv("HOME", "")  # would be the root folder
    with pytest.raises(OSError, match="no home folder"):
        cache.cache_folder()
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no entry for the user either
    with pytest.raises(OSError, match="no home folder"):
        cache.cache_folder()


def test_key_depends_on_every_part():
    keys = {cache.key("a", "b"), cache.key("ab"), cache.key("a", "c"), cache.key("", "ab")}
    assert len(keys) == 4
    assert cache.key("a", "b") in keys
