# SPDX-License-Identifier: Apache-2.0
"""docs/building.md: files are written, commands run and compared with what is shown, programs run, in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytest.importorskip("numpy", reason="NumPy is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "building.md"
BLOCK = re.compile(r"(?:^`([\w/.]+)`\n)?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@pytest.fixture
def shell(tmp_path):
    """Runs a command where `anyop` is this one, with a cache of its own; returns its exit code and all that it said."""
    programs, work = tmp_path / "bin", tmp_path / "work"
    for folder in (programs, work):
        folder.mkdir()
    (programs / "anyop").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m anyop "$@"\n')
    (programs / "anyop").chmod(0o755)
    paths = [str(Path(anyop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ANYOP_CACHE_DIR": str(tmp_path / "cache"),
        "LC_ALL": "C.UTF-8",
    }

    def run(command: str | list[str]) -> tuple[int, str]:
        done = subprocess.run(
            command, shell=isinstance(command, str), cwd=work, env=environment, text=True, timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    run.folder = work
    return run


def test_the_page_does_what_it_says(shell):
    program, counts = "", {"console": 0, "python": 0, "file": 0}
    for name, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "console":
            for command, shown in COMMAND.findall(text):
                check(shown, shell(command)[1], command)
                counts["console"] += 1
        elif language == "python":  # goes on where the last one ended
            program += text
            code, printed = shell([sys.executable, "-c", program])
            assert code == 0, f"{text}\n{printed}"
            counts["python"] += 1
        else:
            path = shell.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            counts["file"] += 1
    assert counts == {"console": 10, "python": 3, "file": 3}


def check(shown: str, printed: str, command: str) -> None:
    """`...` stands for anything, also for lines; what a long build says on the way is left out."""
    lines = [line for line in printed.splitlines() if not line.startswith("anyop: building ")]
    pattern = ".*".join(map(re.escape, shown.rstrip("\n").split("...")))
    found = re.fullmatch(pattern, "\n".join(lines), re.DOTALL)
    assert found, f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}"


def test_what_is_compared():
    check("a ... b\n", "anyop: building a\na 1 2 b\n", "")
    for shown, printed in (("a ... b\n", "a b\n"), ("passed\n", "failed\n"), ("a\n", "a\nb\n")):
        with pytest.raises(AssertionError):
            check(shown, printed, "")
