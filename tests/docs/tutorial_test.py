# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md and its notebook: commands are run, files written, what is shown is compared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

for needed in ("torch", "jax"):
    pytest.importorskip(needed, reason=f"{needed} is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import notebook  # noqa: E402

PAGE = notebook.PAGE
# A block, and the name of its file where one stands above it.
BLOCK = re.compile(r"(?:^`([\w/.]+)`\n)?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(tmp_path):
    """Runs a command where `anyop` and `python` are those of this test; returns all that it printed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"anyop": "-m anyop", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    paths = [str(Path(anyop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "LC_ALL": "C.UTF-8",
    }
    work = tmp_path / "work"
    work.mkdir()

    def run(command: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=work, env=environment, text=True, timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout

    run.folder = work
    return run


def session(text: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert not parts[0], f"a console block begins with {parts[0]!r}, expected a command"
    return list(zip(parts[1::2], parts[2::2]))


def fits(shown: str, printed: str) -> bool:
    """Whether it is what is shown; `...` stands for anything, also for lines."""
    pattern = ".*".join(map(re.escape, shown.rstrip("\n").split("...")))
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


def without_progress(printed: str) -> str:
    """Builds that take long say so; how many lines, nobody knows."""
    return "".join(
        line for line in printed.splitlines(True) if not line.startswith("anyop: building ")
    )


@pytest.mark.drawn(2, group="the tutorial")
def test_the_page_does_what_it_says(shell):
    commands = files = excerpts = 0
    for name, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "console":
            for command, shown in session(text):
                printed = without_progress(shell(command))
                assert fits(shown, printed), f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}"
                commands += 1
        elif (shell.folder / name).exists():
            assert text in (shell.folder / name).read_text(), f"{name} has no such lines:\n{text}"
            excerpts += 1
        else:
            (shell.folder / name).write_text(text)
            files += 1
    assert (commands, files, excerpts) == (11, 3, 5)


def test_what_is_compared():
    assert fits("a ... b\n", "a 1 2 b\n") and fits("x...\nlast\n", "x\nmore\nlast\n")
    assert not fits("a ... b\n", "a b\n") and not fits("passed\n", "failed\n")
    assert not fits("...\npassed\n", "passed, almost\n")
    assert session("$ a\nx\ny\n$ b\n") == [("a", "x\ny\n"), ("b", "")]


def test_the_notebook_is_the_page():
    page = PAGE.read_text(encoding="utf-8")
    text = PAGE.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert text == notebook.notebook(page), "python tools/notebook.py writes it anew"


@pytest.mark.drawn(2, group="the tutorial")
def test_the_notebook_does_what_the_page_says(shell):
    """Its cells in one Python, as a kernel runs them; lines with ! by the shell."""
    page = PAGE.read_text(encoding="utf-8")
    text = PAGE.with_suffix(".ipynb").read_text(encoding="utf-8")
    cells = ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    program = "import subprocess\n" + "\n".join(
        f"subprocess.run({cell[1:]!r}, shell=True)" if cell.startswith("!") else cell
        for cell in cells
    )
    (shell.folder / "cells.py").write_text(program)
    printed = without_progress(shell("python -u cells.py"))
    blocks = BLOCK.findall(page)
    sessions = [session(text) for _, language, text in blocks if language == "console"]
    shown = "...".join(shown for parts in sessions for _, shown in parts)
    assert len(cells) == 3 + 8 and fits(f"{shown}", printed), (
        f"shown:\n{shown}\nprinted:\n{printed}"
    )
