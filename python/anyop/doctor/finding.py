# SPDX-License-Identifier: Apache-2.0
"""One thing that was looked at, and how a program is asked."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass

OK, MISSING, PROBLEM, NOTE = "ok", "missing", "problem", "note"


@dataclass
class Finding:
    """What was found of one thing. mend: the command or the step that helps. needed: to build a C++ folder."""

    group: str
    name: str
    state: str
    text: str
    mend: str = ""
    needed: bool = False


def ask(command: list[str], seconds: float = 2.0, text: str = "") -> str:
    """What a program prints; RuntimeError where it cannot be run, fails or takes too long.

    It and all that it starts are killed then. Nothing goes through a pipe, which a grandchild could keep open.
    """
    given, printed = os.memfd_create("in"), os.memfd_create("out")
    try:
        os.write(given, text.encode())
        os.lseek(given, 0, os.SEEK_SET)
        code = _run(command, seconds, given, printed)
        os.lseek(printed, 0, os.SEEK_SET)
        output = os.read(printed, 1 << 20).decode("utf-8", "replace").strip()
    finally:
        os.close(given)
        os.close(printed)
    if code:
        lines = output.splitlines() or ["nothing printed"]
        said = next((line for line in lines if "error" in line), lines[0])
        raise RuntimeError(f"{command[0]} ended with {code}: {said}")
    return output


def _run(command: list[str], seconds: float, given: int, printed: int) -> int:
    """How it ended."""
    try:
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",  # compilers find their parts by PATH, which may have "." in it
        )
    except OSError as error:
        raise RuntimeError(f"{command[0]} cannot be run: {error.strerror}") from None
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise RuntimeError(f"{command[0]} did not end within {seconds:g} s") from None
