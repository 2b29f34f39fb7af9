# SPDX-License-Identifier: Apache-2.0
"""Text as C: string literals, comments, braced initialisers."""

from __future__ import annotations


def c_string(text: str | None) -> str:
    """A C literal of UTF-8 text; NULL for None. Octal escapes, for those end by themselves."""
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
        for byte in text.encode()
    ]
    lines = [""]
    for part in parts:
        if len(lines[-1]) > 100 or lines[-1].endswith("\\n"):
            lines.append("")
        lines[-1] += part
    return "\n    ".join(f'"{line}"' for line in lines)


def c_comment(text: str) -> str:
    """Text that neither ends a C comment nor begins another."""
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ").replace("\\", "/")


def braced(items: list[str]) -> str:
    """A braced initialiser, broken between items only: an item may hold blanks in quotes."""
    lines = ["    {"]
    for item in items:
        if len(lines[-1]) + len(item) > 97:
            lines.append("     ")
        lines[-1] += f"{item}, "
    return "\n".join(line.rstrip() for line in lines).removesuffix(",") + "},"
