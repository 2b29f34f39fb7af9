# SPDX-License-Identifier: Apache-2.0
"""The one way of text into C: string literals, comments, strings of the assembler; and braced initialisers."""

from __future__ import annotations

import os
import re
from pathlib import Path


def c_string(text: str | None) -> str:
    """A C literal of UTF-8 text; NULL for None. Octal escapes, for those end by themselves.

    A path's bytes that are not UTF-8 (os.fsdecode) stay what they are.
    """
    if text is None:
        return "NULL"
    plain = {
        0x22: '\\"',
        0x5C: "\\\\",
        0x0A: "\\n",
        0x09: "\\t",
        0x3F: "\\?",
    }  # ? because of trigraphs
    parts = [
        plain.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode("utf-8", "surrogateescape")
    ]
    lines = [""]
    for part in parts:
        if len(lines[-1]) > 100 or lines[-1].endswith("\\n"):
            lines.append("")
        lines[-1] += part
    return "\n    ".join(f'"{line}"' for line in lines)


def c_comment(text: str) -> str:
    """Text inside a comment, of one line: it neither ends the comment nor begins another, in any order of C's phases.

    Blanks stand between the signs of */, /* and trigraphs; a space for a line break or tab; what cannot be printed
    (controls, marks of direction, U+2028) by its number.
    """
    shown = "".join(
        char if char.isprintable() else " " if char in "\n\t" else f"<U+{ord(char):04X}>"
        for char in text
    )
    return re.sub(r"\*(?=/)|/(?=\*)|\?(?=\?)", r"\g<0> ", shown)


def c_include(path: str) -> str:
    """The line that includes a file; ValueError: it has a sign that no such line can hold."""
    if re.search(r'["\n\r\0]|\?\?', path):
        raise ValueError(f"{path!r} has a quote or a line break, which no #include can name")
    return f'#include "{path}"\n'


def c_asm_path(path: Path) -> str:
    """A path for .incbin: the assembler reads its own escapes in the string that C has read."""
    plain = b"".join(
        b"%c" % byte if 32 <= byte < 127 and byte not in b'"\\' else b"\\%03o" % byte
        for byte in os.fsencode(path)
    )
    return c_string(plain.decode("ascii"))


def braced(items: list[str]) -> str:
    """A braced initialiser, broken between items only: an item may hold blanks in quotes."""
    lines = ["    {"]
    for item in items:
        if len(lines[-1]) + len(item) > 97:
            lines.append("     ")
        lines[-1] += f"{item}, "
    return "\n".join(line.rstrip() for line in lines).removesuffix(",") + "},"
