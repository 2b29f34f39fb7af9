# SPDX-License-Identifier: Apache-2.0
"""Watches the processes of junk_worker.py: names the call in which one died or hung, and starts the next behind it.

A hang is a call that used up CPU_SECONDS of the processor, or that stood still for WALL_SECONDS: hundreds of times what
a call takes, so that a machine under load is none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from junk_worker import COUNTERS, HERE, STATE_BYTES, read_state

CPU_SECONDS = 30
WALL_SECONDS = 300
START_SECONDS = 600  # imports, and the first build of a glue
MOST_DEATHS = 20
PART = 4000  # calls of one process


class Outcome(NamedTuple):
    """What came of the calls of one framework."""

    calls: int
    right: int
    refused: int
    unfit: int
    deaths: list[str]
    hangs: list[str]
    faults: list[dict]

    def text(self) -> str:
        """Numbers for the report."""
        return (
            f"{self.calls:,} calls, {self.right:,} right, {self.refused:,} refused, "
            f"{len(self.deaths)} deaths, {len(self.hangs)} hangs, {len(self.faults)} faults"
        )


def seconds_used(process: int) -> float:
    """Of the processor, by the process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environment(framework: str) -> dict[str, str]:
    """A sanitizer refuses what is too large, as the limit of memory does elsewhere.

    It looks for new[] with delete, except in Paddle, which does that at exit.
    """
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if "ASAN_OPTIONS" in found:
        mismatch = int(framework != "paddle")
        found["ASAN_OPTIONS"] += f":max_allocation_size_mb=4096:alloc_dealloc_mismatch={mismatch}"
    return found


def run_calls(framework: str, seed: str, count: int) -> Outcome:
    """Makes the first calls of the list; a process that dies is followed by another behind that call."""
    totals, deaths, hangs = [0] * 4, [], []
    with tempfile.TemporaryDirectory() as folder:
        state, faults = Path(folder, "state"), Path(folder, "faults")
        faults.touch()
        position = 0
        while position < count and len(deaths) + len(hangs) < MOST_DEATHS:
            state.write_bytes(b"\0" * STATE_BYTES)
            stop = min(count, position + PART)
            ended, hung, said = watch(framework, seed, state, faults, position, stop)
            counters, text = read_state(state)
            totals = [a + b for a, b in zip(totals, counters[1:5])]
            if ended == 0 and counters[5]:
                position = stop
                continue
            again = f"python tests/hostile/junk_worker.py {framework} {seed} {counters[0] - 1}"
            what = f"{text}\n    rc {ended}; again: {again}\n{said[-2500:]}"
            (hangs if hung else deaths).append(what)
            position = max(position + 1, counters[0])
        found = [json.loads(line) for line in faults.read_text().splitlines()]
    return Outcome(*totals, deaths, hangs, found)


def watch(
    framework: str, seed: str, state: Path, faults: Path, start: int, stop: int
) -> tuple[int, bool, str]:
    """One process: its exit code, whether it hung, and the end of what it said."""
    words = [sys.executable, HERE / "junk_worker.py", framework, seed, state, faults, start, stop]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            list(map(str, words)), stdout=said, stderr=subprocess.STDOUT, env=environment(framework)
        )
        hung = not wait(process, state)
        if hung:
            process.send_signal(signal.SIGABRT)  # faulthandler prints where it is
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        said.seek(0)
        return process.returncode, hung, said.read()


def wait(process: subprocess.Popen, state: Path) -> bool:
    """True when it ended by itself; False when a call takes too long."""
    before, used, since = b"", 0.0, time.monotonic()
    while process.poll() is None:
        with state.open("rb") as file:
            counters = file.read(COUNTERS.size)
        if counters != before:
            before, used, since = counters, seconds_used(process.pid), time.monotonic()
        begun = any(counters)
        wall = time.monotonic() - since
        if wall > (WALL_SECONDS if begun else START_SECONDS):
            return False
        if begun and seconds_used(process.pid) - used > CPU_SECONDS:
            return False
        time.sleep(0.2)
    return True
