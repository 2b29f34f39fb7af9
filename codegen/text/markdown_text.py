# SPDX-License-Identifier: Apache-2.0
"""The one way of text into Markdown: a block of code, words of code, a cell of a table."""

from __future__ import annotations

import re


def markdown_block(text: str) -> list[str]:
    """Lines of a block of code: its fence is longer than any run of backticks inside."""
    fence = _ticks(text, 3)
    return [fence, *text.splitlines(), fence]


def markdown_code(text: str) -> str:
    """Words of code in a line."""
    words, ticks = " ".join(text.split()), _ticks(text, 1)
    blank = " " * words.startswith("`") or " " * words.endswith("`")
    return f"{ticks}{blank}{words}{blank}{ticks}"


def markdown_cell(text: str) -> str:
    """Plain words in one cell: nothing in them is a mark of Markdown or of HTML."""
    return re.sub(r"[\\`*_\[\]<>|~#&$!]", r"\\\g<0>", " ".join(text.split()))


def _ticks(text: str, least: int) -> str:
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])
