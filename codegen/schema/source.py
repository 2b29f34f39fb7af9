# SPDX-License-Identifier: Apache-2.0
"""The text of one operator file, where its keys stand, and the one form of every error message."""

from __future__ import annotations

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_SHOWN = 20
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*(?:\.\s*["']?([A-Za-z0-9_-]+)["']?\s*)?=""")


class Mistake(Exception):
    """Something wrong, not yet with its place: what was found, what is expected, the fix."""

    def __init__(self, found: str, expected: str, fix: str) -> None:
        super().__init__(f"{found}, expected {expected}; {fix}")


class SchemaError(Exception):
    """A mistake with its place, printed as `path:line: found, expected; fix`."""

    def __init__(self, path: Path | str, line: int, message: object) -> None:
        super().__init__(f"{path}:{line}: {message}")


class SchemaErrors(ValueError):
    """Every mistake of some folders; the text has a line for each of the first twenty."""

    def __init__(self, errors: Iterable[SchemaError]) -> None:
        lines = [str(error) for error in errors]
        more = len(lines) - _SHOWN
        super().__init__("\n".join(lines[:_SHOWN] + [f"and {more} more mistakes"] * (more > 0)))


def nearest(word: str, known: Iterable[str], fix: str) -> str:
    """The fix for an unknown word: the nearest known one when there is one, else `fix`."""
    known = list(known)
    close = [] if word in known else difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else fix


def listed(words: Iterable[str], last: str = "or") -> str:
    """'a, b or c'."""
    words = list(words)
    return (
        f" {last} ".join([", ".join(words[:-1]), words[-1]])
        if len(words) > 1
        else "".join(words) or "none"
    )


def check_one_of(
    word: object, known: Iterable[str], found: str, expected: str = "", fix: str = "correct it"
) -> None:
    """Refuses a word that none of these is; `expected` says what they are."""
    names = list(known)
    if word not in names:
        choices = f"{expected} ({listed(names)})" if expected else listed(names)
        raise Mistake(found, choices, nearest(str(word), names, fix))


def _code_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines, with their numbers, that do not begin inside a multi-line string."""
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not quote:
            yield number, line
        for part in re.findall("\"\"\"|'''", line):
            quote = "" if part == quote else quote or part


class Source:
    """One file: its parsed TOML, and the line on which a key stands (tomllib does not tell)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = self._read()
        try:
            self.data = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            said = re.search(r"at line (\d+)", str(error))
            at = int(said[1]) if said else self.text.count("\n") + 1
            found, fix = f"bad TOML ({error})", "correct this line"
            raise self._wrong(at, found, "a TOML document", fix) from None
        except RecursionError:
            found, fix = "bad TOML (nested too deeply)", "write flat sections"
            raise self._wrong(1, found, "a TOML document", fix) from None

    def _read(self) -> str:
        try:
            if not self.path.is_file() and self.path.exists():  # a pipe would be waited for
                raise OSError(errno.EINVAL, "no regular file")
            return self.path.read_bytes().decode("utf-8")
        except OSError as error:
            found = f"the file cannot be read ({error.strerror or type(error).__name__})"
            fix = "check its path and permissions"
            raise self._wrong(1, found, "a readable file", fix) from None
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            found, fix = "bytes that are not UTF-8", "save the file as UTF-8"
            raise self._wrong(line, found, "UTF-8 text", fix) from None

    def _wrong(self, line: int, found: str, expected: str, fix: str) -> SchemaError:
        return SchemaError(self.path, line, Mistake(found, expected, fix))

    def line(self, section: str | None, key: str | None = None, text: str | None = None) -> int:
        """Line of `key` in `section` (None: above all), of the section, or 1; `text` behind it."""
        current, found, fallback = None, 0, 1
        for number, line in _code_lines(self.text):
            if header := _HEADER.match(line):
                current = header[1].strip("\"' ")
                if current == section:
                    fallback = number
                elif key and current == f"{section}.{key}":
                    found = number
            elif assigned := _KEY.match(line):
                outer, inner = assigned[1], assigned[2]
                if current is None and outer == section:  # `shapes.x = ...` or `shapes = {...}`
                    fallback = number
                    found = number if inner and inner == key else found
                elif current == section and outer == key:
                    found = number
        at = found or fallback
        return at if text is None else self._line_of_text(text, at)

    def _line_of_text(self, text: str, at: int) -> int:
        for number, line in enumerate(self.text.splitlines()[at - 1 :], at):
            if text in line:
                return number
        return at

    @contextlib.contextmanager
    def at(
        self, section: str | None, key: str | None = None, text: str | None = None
    ) -> Iterator[None]:
        """Gives each Mistake raised inside the place of this key."""
        try:
            yield
        except Mistake as mistake:
            raise SchemaError(self.path, self.line(section, key, text), mistake) from None
