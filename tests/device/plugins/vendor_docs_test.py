# SPDX-License-Identifier: Apache-2.0
"""docs/vendor.md: its commands print what is shown, its programs run, its extracts are in what is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytestmark = pytest.mark.host
pytest.importorskip("numpy", reason="NumPy is not installed")

PAGE = Path(__file__).parents[3] / "docs" / "vendor.md"
BLOCK = re.compile(r"(?:^`([\w/.]+)`\n)?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@pytest.fixture
def run(tmp_path):
    """What a command or program says, in an empty folder where `anyop` is this one; it must end with code 0."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, more in (("anyop", "-m anyop "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {more}"$@"\n')
        (programs / name).chmod(0o755)
    paths = [str(Path(anyop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }

    def run(command: str | list[str]) -> str:
        done = subprocess.run(
            command, shell=isinstance(command, str), cwd=tmp_path, env=environment, text=True, timeout=200,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    return run


def test_the_page_does_what_it_says(run, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake")
    counts = {"console": 0, "python": 0, "cpp": 0}
    for name, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "console":
            for command, shown in COMMAND.findall(text):
                pattern = ".*".join(map(re.escape, shown.rstrip("\n").split("...")))
                printed = run(command).rstrip("\n")
                assert re.fullmatch(pattern, printed, re.DOTALL), f"$ {command}\n{printed}"
                counts["console"] += 1
        elif language == "python":
            run([sys.executable, "-c", text])
            counts["python"] += 1
        elif language == "toml":
            (tmp_path / name).write_text(text, encoding="utf-8")
        else:
            assert text in (tmp_path / name).read_text(encoding="utf-8"), text
            counts["cpp"] += 1
    assert counts == {"console": 6, "python": 1, "cpp": 3}
