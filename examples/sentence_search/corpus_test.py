# SPDX-License-Identifier: Apache-2.0
"""Passages of the library and of folders: which there are, which are left out and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import InputError, corpus
from .corpus import split

LONG = "A sentence that is long enough to say what the function does, with all its details. "


def test_library_is_public_long_enough_and_unique():
    reading = corpus.standard_library().read()
    texts = [passage.text for passage in reading.passages]
    assert 2000 <= len(texts) <= 4500
    assert len(set(texts)) == len(texts)
    assert min(map(len, texts)) >= 80 and max(map(len, texts)) == 600
    for passage in reading.passages:
        modules = passage.place.split(".")
        assert not {"test", "tests", "idlelib"} & set(modules)
        names = modules + ([] if passage.part == "(module)" else passage.part.split("."))
        assert not any(name.startswith("_") for name in names), passage
    found = {(passage.place, passage.part) for passage in reading.passages}
    assert {("timeit", "(module)"), ("timeit", "Timer.timeit"), ("shutil", "copytree")} <= found
    assert ("unittest.mock", "patch") in found  # not a test, in spite of its name


def test_docstrings_of_what_can_be_named(tmp_path):
    source = f'''"""Module. {LONG}"""
class Public:
    """Class. {LONG}"""
    def method(self):
        """Method. {LONG}"""
        def inner():
            """Inner. {LONG}"""
    def _private(self):
        """Private method. {LONG}"""
    def __len__(self):
        """Special method. {LONG}"""
class _Private:
    def method(self):
        """Of a private class. {LONG}"""
if True:
    async def behind_if():
        """If. {LONG}"""
else:
    def behind_else(): "Else. {LONG}"
try:
    def in_try(): "Try. {LONG}"
except ImportError:
    def in_handler(): "Handler. {LONG}"
def short():
    """Too short."""
def very_long():
    """{LONG * 9}"""
'''
    (tmp_path / "things.py").write_text(source)
    content = (tmp_path / "things.py").read_bytes()
    passages = list(corpus._docstrings("things.py", content))
    assert [passage.part for passage in passages] == [
        "(module)",
        "Public",
        "Public.method",
        "behind_if",
        "behind_else",
        "in_try",
        "in_handler",
        "very_long",
    ]
    assert {passage.place for passage in passages} == {"things"}
    assert passages[0].text == f"Module. {LONG}".strip()
    assert passages[-1].text == (LONG * 9)[:600]


@pytest.mark.parametrize(
    "text",
    [
        "one line",
        "short\n\nparagraphs\n\nof few words",
        (LONG + "\n\n") * 5,
        "word " * 1000,
        "x" * 5000,
        "x" * 599 + "\n" + "y" * 600 + "\n" + "z" * 601,
        "\n\n  indented\r\nand windows\r\n" + LONG * 20,
    ],
)
def test_split_keeps_every_character_and_its_line(text):
    passages = list(split(text))
    assert "".join("".join(p for _, p in passages).split()) == "".join(text.split())
    lines = text.splitlines()
    for line, passage in passages:
        assert 0 < len(passage) <= corpus.LONGEST
        assert passage.split("\n")[0][:20] in lines[line - 1]


def test_split_cuts_between_words():
    passages = [passage for _, passage in split("word " * 1000)]
    assert all(set(passage.split()) == {"word"} for passage in passages)


def write_mixed_folder(root: Path) -> None:
    (root / "sub" / ".hidden").mkdir(parents=True)
    (root / "good.txt").write_text("good words\n")
    (root / "sub" / "bom.md").write_bytes(b"\xef\xbb\xbfwith a mark")
    (root / "sub" / "again.txt").write_text("good words\n")
    (root / "empty.txt").write_text(" \n\n")
    (root / "zero.txt").write_text("")
    (root / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (root / "binary.bin").write_bytes(b"ab\0cd")
    (root / ".hidden.txt").write_text("hidden")
    (root / "sub" / ".hidden" / "file.txt").write_text("hidden")
    os.mkfifo(root / "pipe")
    os.symlink(root, root / "sub" / "loop")
    os.symlink(root / "nowhere", root / "dangling")
    Path(os.fsdecode(bytes(root) + b"/bad\xff.txt")).write_text("name is not UTF-8")


def test_folder_reads_text_and_reports_the_rest(tmp_path):
    write_mixed_folder(tmp_path)
    reading = corpus.text_folder(str(tmp_path)).read()
    found = {(passage.place, passage.part, passage.text) for passage in reading.passages}
    assert found == {
        ("good.txt", "line 1", "good words"),
        (os.path.join("sub", "bom.md"), "line 1", "with a mark"),
        ("bad\\xff.txt", "line 1", "name is not UTF-8"),
    }
    assert sorted(reading.skipped) == [
        "binary.bin: not text (it has a NUL character)",
        "dangling: cannot be read (No such file or directory)",
        "empty.txt: empty",
        "latin.txt: not UTF-8 text (byte 3)",
        "pipe: not a regular file",
        "zero.txt: empty",
    ]


def test_digest_follows_names_and_contents(tmp_path):
    write_mixed_folder(tmp_path)

    def digest() -> str:
        found = corpus.text_folder(str(tmp_path))
        assert found.digest() == found.read().digest  # else no index would ever be found again
        return found.digest()

    digests = [digest()]
    (tmp_path / "good.txt").write_text("other words\n")
    digests.append(digest())
    (tmp_path / "good.txt").rename(tmp_path / "renamed.txt")
    digests.append(digest())
    (tmp_path / "zero.txt").unlink()
    digests.append(digest())
    assert len(set(digests)) == 4
    (tmp_path / "zero.txt").write_text("")
    assert digest() == digests[2]


def test_file_too_large_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LARGEST_FILE_BYTES", 10)
    (tmp_path / "large.txt").write_text("more than ten bytes")
    (tmp_path / "small.txt").write_text("ten bytes.")
    reading = corpus.text_folder(str(tmp_path)).read()
    assert [passage.text for passage in reading.passages] == ["ten bytes."]
    assert reading.skipped == ["large.txt: larger than 0 MiB"]


def test_folders_without_text_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        corpus.text_folder(str(tmp_path / "missing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        corpus.text_folder(str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"1 files, none with text \(first: file: empty\)"):
        corpus.text_folder(str(tmp_path)).read()
    (tmp_path / "file").unlink()
    with pytest.raises(InputError, match="no files"):
        corpus.text_folder(str(tmp_path)).read()


def test_printable_has_no_control_characters():
    assert corpus.printable("a\x1b[31m\n\tb\udcff ") == "a [31m b\\xff"
