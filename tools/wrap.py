# SPDX-License-Identifier: Apache-2.0
"""Checks that paragraphs and list items of Markdown pages have at most 100 columns; --fix wraps those that have more.

Tables, headings and code are left alone. No line is broken within `code`, or where what follows would begin a list, a
heading, a quotation or a table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from arrows import ROOT

COLUMNS = 100
_FENCE = re.compile(r" *(```|~~~)")
_ITEM = re.compile(r" *(?:[-*+]|\d+[.)]) +")
_NO_TEXT = re.compile(r" *(?:[|#<>]|!\[|\[\w+\]:|    )|\t")
_BEGINS_A_BLOCK = re.compile(r"[-+*=|#>]+$|[|#>]|\d+[.)]$|```|~~~")


def wrapped(page: str) -> str:
    """The page, with those paragraphs wrapped that have a longer line."""
    return "".join(wrapped_block(lines) if is_text else lines[0] for lines, is_text in blocks(page))


def blocks(page: str) -> Iterator[tuple[list[str], bool]]:
    """Lines that belong together: a paragraph or an item of a list (True), or a line of anything else."""
    block: list[str] = []
    fence = ""
    for line in page.splitlines(keepends=True):
        mark = _FENCE.match(line)
        is_text = not fence and not mark and bool(line.strip())
        # Lines that follow an item's are indented as far as its text.
        goes_on = is_text and bool(block) and not _ITEM.match(line)
        if goes_on and not _NO_TEXT.match(line.lstrip() if _ITEM.match(block[0]) else line):
            block.append(line)
            continue
        if block:
            yield block, True
        block = []
        if is_text and (_ITEM.match(line) or not _NO_TEXT.match(line)):
            block = [line]
        else:
            yield [line], False
        if mark:
            fence = "" if fence == mark[1] else fence or mark[1]
    if block:
        yield block, True


def wrapped_block(lines: list[str]) -> str:
    text = "".join(lines)
    item = _ITEM.match(text)
    begin = item[0] if item else re.match(" *", text)[0]
    is_short = all(len(line.rstrip("\n")) <= COLUMNS for line in lines)
    if is_short or re.search(r"(  |\\)\n", text):  # a break that is shown
        return text
    indent = " " * len(begin)
    made = [begin]
    is_first = True
    for word in words(text[len(begin) :]):
        if not is_first and len(made[-1]) + 1 + len(word) > COLUMNS:
            made.append(indent + word)
        else:
            made[-1] += word if is_first else " " + word
        is_first = False
    return "\n".join(made) + "\n"


def words(text: str) -> list[str]:
    """What no line is broken within."""
    found: list[str] = []
    for word in text.split():
        if found and (found[-1].count("`") % 2 or _BEGINS_A_BLOCK.match(word)):
            found[-1] += " " + word
        else:
            found.append(word)
    return found


def pages() -> list[Path]:
    places = ("*.md", "docs/*.md", "examples/*/README.md")
    return sorted(page for place in places for page in ROOT.glob(place))


def main(arguments: list[str]) -> int:
    wrong = [page for page in pages() if wrapped(page.read_text()) != page.read_text()]
    for page in wrong:
        if "--fix" in arguments:
            page.write_text(wrapped(page.read_text()))
        else:
            place = page.relative_to(ROOT)
            print(
                f"{place}: a paragraph has more than {COLUMNS} columns: python tools/wrap.py --fix"
            )
    return bool(wrong) and "--fix" not in arguments


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
