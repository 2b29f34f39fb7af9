# SPDX-License-Identifier: Apache-2.0
"""Where passages come from: the docstrings of the running Python's library, or a folder of text."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from . import InputError

SHORTEST = 80  # characters: below, a docstring says too little to be found by meaning
LONGEST = 600  # characters: about 130 tokens, well within the model's limit
LARGEST_FILE_BYTES = 64 << 20
NOT_PUBLIC = {"test", "tests", "idlelib", "idle_test"}


class Passage(NamedTuple):
    """One text to find. Of the library: module and function; of a folder: file and line."""

    place: str
    part: str
    text: str


@dataclass
class Reading:
    """What one pass over a corpus gave: its passages, and why files were left out."""

    passages: list[Passage] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    digest: str = ""


class SkipError(Exception):
    """A file that holds no passage; the text says why."""


@dataclass
class Corpus:
    title: str
    root: str
    names: list[str]  # paths below root, sorted
    parse: Callable[[str, bytes], Iterator[Passage]]

    def digest(self) -> str:
        """SHA-256 of all names and contents: equal digests, equal passages."""
        digest = self._new_digest()
        for name in self.names:
            _add_to_digest(digest, name, *self._load(name))
        return digest.hexdigest()

    def read(self) -> Reading:
        """Every passage once, in order of file and line; raises InputError when there is none."""
        reading, digest, seen = Reading(), self._new_digest(), set()
        for name in self.names:
            content, reason = self._load(name)
            _add_to_digest(digest, name, content, reason)
            try:
                if reason:
                    raise SkipError(reason)
                for passage in self.parse(name, content):
                    if passage.text not in seen:
                        seen.add(passage.text)
                        reading.passages.append(passage)
            except SkipError as skip:
                reading.skipped.append(f"{printable(name)}: {skip}")
        reading.digest = digest.hexdigest()
        if not reading.passages:
            found = f"{len(self.names)} files, none with text" if self.names else "no files"
            first = f" (first: {reading.skipped[0]})" if reading.skipped else ""
            raise InputError(f"{printable(self.root)} has nothing to search: {found}{first}")
        return reading

    def _new_digest(self):
        return hashlib.sha256(self.parse.__name__.encode())

    def _load(self, name: str) -> tuple[bytes, str]:
        """Content of a file, or why there is none."""
        try:
            return _read(os.path.join(self.root, name)), ""
        except SkipError as reason:
            return b"", str(reason)


def standard_library() -> Corpus:
    """Public docstrings of the running Python's own modules written in Python."""
    root = os.path.dirname(os.__file__)
    names = [
        os.path.relpath(os.path.join(folder, file), root)
        for folder, files in _walk(root, keep_folder=_is_public)
        for file in files
        if file.endswith(".py") and (file == "__init__.py" or _is_public(file[:-3]))
    ]
    if not names:
        raise InputError(f"no Python sources in {printable(root)}: give --corpus DIR")
    version = ".".join(map(str, sys.version_info[:3]))
    return Corpus(f"standard library of Python {version}", root, sorted(names), _docstrings)


def text_folder(path: str) -> Corpus:
    """Every regular file below path that is not hidden, as UTF-8 text."""
    if not os.path.exists(path):
        raise InputError(f"the corpus folder {printable(path)} does not exist")
    if not os.path.isdir(path):
        raise InputError(f"the corpus {printable(path)} is not a folder")
    if not os.access(path, os.R_OK | os.X_OK):
        raise InputError(f"the corpus folder {printable(path)} cannot be read")
    names = [
        os.path.relpath(os.path.join(folder, file), path)
        for folder, files in _walk(path, keep_folder=lambda name: not name.startswith("."))
        for file in files
        if not file.startswith(".")
    ]
    return Corpus(printable(path), path, sorted(names), _paragraphs)


def printable(text: str) -> str:
    """One line that any terminal can show: no control characters, no undecodable bytes."""
    text = os.fsencode(text).decode("utf-8", "backslashreplace") if _has_surrogate(text) else text
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name not in NOT_PUBLIC


def _walk(root: str, keep_folder: Callable[[str], bool]) -> Iterator[tuple[str, list[str]]]:
    """Folders and their files; a folder that cannot be listed counts as a file, to be reported."""
    refused: list[str] = []
    for folder, folders, files in os.walk(
        root, onerror=lambda error: refused.append(error.filename)
    ):
        folders[:] = filter(keep_folder, folders)
        yield folder, files
    for path in refused:
        yield os.path.dirname(path), [os.path.basename(path)]


def _add_to_digest(digest, name: str, content: bytes, reason: str) -> None:
    name_bytes = os.fsencode(name)
    digest.update(b"%d %d %s " % (len(name_bytes), len(content), reason.encode()) + name_bytes)
    digest.update(content)


def _read(path: str) -> bytes:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise SkipError("folder cannot be listed")
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
            raise SkipError("not a regular file")
        if found.st_size > LARGEST_FILE_BYTES:
            raise SkipError(f"larger than {LARGEST_FILE_BYTES >> 20} MiB")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SkipError(f"cannot be read ({error.strerror})") from None


def _docstrings(name: str, content: bytes) -> Iterator[Passage]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SkipError(f"no Python source ({type(error).__name__})") from None
    module = name[:-3].replace(os.sep, ".").removesuffix(".__init__")
    for part, node in [("(module)", tree), *_public_definitions(tree.body, "")]:
        text = (ast.get_docstring(node) or "").strip()
        if len(text) >= SHORTEST:
            yield Passage(module, part, text[:LONGEST])


def _public_definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions, classes and methods that can be named from outside, also behind if and try."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _public_definitions(node.body + node.orelse, prefix)
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            alternatives = node.body + handlers + node.orelse + node.finalbody
            yield from _public_definitions(alternatives, prefix)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name.startswith("_"):
                continue
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _public_definitions(node.body, f"{prefix}{node.name}.")


def _paragraphs(name: str, content: bytes) -> Iterator[Passage]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SkipError(f"not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise SkipError("not text (it has a NUL character)")
    if not text.strip():
        raise SkipError("empty")
    for line, passage in split(text):
        yield Passage(printable(name), f"line {line}", passage)


def split(text: str) -> Iterator[tuple[int, str]]:
    """Cut text into passages of at most LONGEST characters, at blank lines where long enough.

    Yields the line a passage begins on and the passage; nothing but white space is left out.
    """
    start, size, pieces = 1, 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        for piece in _cut(line.strip()):
            if size + len(piece) + 1 > LONGEST and pieces:
                yield start, "\n".join(pieces)
                size, pieces = 0, []
            start = start if pieces else number
            pieces.append(piece)
            size += len(piece) + 1
        if not line.strip() and size >= SHORTEST:
            yield start, "\n".join(pieces)
            size, pieces = 0, []
    if pieces:
        yield start, "\n".join(pieces)


def _cut(line: str) -> Iterator[str]:
    """Pieces of a line that fit a passage, cut between words where there are words."""
    while len(line) >= LONGEST:
        space = line.rfind(" ", 1, LONGEST - 1)
        end = space if space > 0 else LONGEST - 1
        yield line[:end]
        line = line[end:].strip()
    if line:
        yield line
