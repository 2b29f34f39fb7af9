# SPDX-License-Identifier: Apache-2.0
"""`anyop completion`: what a shell is offered, and its script in bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from anyop import command


def offered(capsys, *words: str) -> list[str]:
    assert command.main(["completion", "words", "\t".join(["anyop", *words])]) == 0
    return capsys.readouterr().out.splitlines()


def test_what_is_offered(capsys):
    assert offered(capsys, "te") == ["test"]
    assert offered(capsys, "") == command.commands()
    assert offered(capsys, "--v") == ["--version"]
    assert offered(capsys, "test", "--fra") == ["--framework"]
    assert offered(capsys, "test", ".", "--framework", "n") == ["numpy"]
    assert offered(capsys, "routes", "sh") == ["show"]
    assert "--op" in offered(capsys, "routes", "show", "--")
    assert offered(capsys, "test", "") == []  # a folder: the shell's own
    assert offered(capsys, "no such command", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_this_command(shell, capsys):
    assert command.main(["completion", shell]) == 0
    assert "anyop completion words " in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash(tmp_path):
    (tmp_path / "anyop").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m anyop "$@"\n')
    (tmp_path / "anyop").chmod(0o755)
    script = 'eval "$(anyop completion bash)"; COMP_WORDS=(anyop routes d); COMP_CWORD=2; _anyop; '
    found = subprocess.run(
        ["bash", "-c", script + 'echo "${COMPREPLY[@]}"; complete -p anyop'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.stdout.splitlines() == ["diff", "complete -o default -F _anyop anyop"], (
        found.stderr
    )
