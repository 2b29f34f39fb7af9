# SPDX-License-Identifier: Apache-2.0
"""Writes docs/tutorial.ipynb, which is docs/tutorial.md as a notebook: python tools/notebook.py.

Commands become lines with `!`, programs become cells. What the page says that they print stands below them as text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
# A block of code, and the name of its file where one stands above it.
_BLOCK = re.compile(r"(?:^`([\w/.]+)`\n)?^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def cells(page: str) -> list[tuple[str, str]]:
    """("markdown" or "code", text)."""
    found: list[tuple[str, str]] = []
    end = 0
    for block in _BLOCK.finditer(page):
        found.append(("markdown", page[end : block.start()]))
        end = block.end()
        name, language, text = block.groups()
        if language == "console":
            found += _session(text)
        elif language == "python" and "/" not in name:  # a program; the others are parts of files
            found.append(("code", text))
        else:
            found.append(("markdown", block[0]))
    found.append(("markdown", page[end:]))
    return [(kind, text.strip("\n")) for kind, text in found if text.strip()]


def _session(text: str) -> list[tuple[str, str]]:
    """Commands as cells, each with what it prints; a program that is a cell already is not run again."""
    found: list[tuple[str, str]] = []
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    for command, shown in zip(parts[1::2], parts[2::2]):
        if not command.startswith("python "):
            found.append(("code", f"!{command}"))
        if shown:
            found.append(("markdown", f"```text\n{shown}```"))
    return found


def notebook(page: str) -> str:
    made = []
    for number, (kind, text) in enumerate(cells(page)):
        cell: dict = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cell["source"] = text.splitlines(keepends=True)
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(notebook(PAGE.read_text()))
