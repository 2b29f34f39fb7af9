# SPDX-License-Identifier: Apache-2.0
"""Many calls, many threads, and the end of the interpreter while views live and calls run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import prepared
import pytest

pytest.importorskip("torch", reason="torch is not installed")

HERE = Path(__file__).parent
FULL = bool(os.environ.get("ANYOP_TEST_FULL"))


def run(*words: str, seconds: float = 1800) -> str:
    process = prepared.run("torch", [sys.executable, *words], timeout=seconds)
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    return process.stdout


def test_threads_get_right_values(report):
    calls = 100_000 if FULL else 10_000
    found = run(str(HERE / "threads_work.py"), "threads", "--count", "8", "--calls", str(calls))
    report += found.splitlines()
    assert f"8 threads x {calls:,} calls right" in found


def test_memory_is_flat(report):
    calls = 1_000_000 if FULL else 100_000
    found = run(str(HERE / "threads_work.py"), "leak", "--calls", str(calls))
    report += found.splitlines()
    assert f"{calls:,} calls" in found


PRELUDE = """
import faulthandler, threading, time
faulthandler.enable()
import anyop.aten as aten
import numpy as np
def lent():
    return aten.transpose(np.arange(600.0).reshape(20, 30), 0, 1)
"""

ENDS = {
    "views alive": """
import json, torch
views = [lent() for _ in range(100)]
a = [lent()]; a.append(a); b = {0: a}; a.append(b)  # a cycle
json.mine = lent(), aten.split(np.ones(9), 1)
torch.mine = torch.from_dlpack(lent()), torch.from_numpy(lent())
held = aten.transpose(np.ones((2, 3)), 0, 1, like="aten")
import atexit
atexit.register(lambda: aten.add(lent(), 1))
threads = [threading.Thread(target=views.clear) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    "daemon threads in calls": """
def forever():
    while True:
        view = lent()
        aten.add(view, 1)
        try: aten.mm(view, view)
        except Exception: pass
big = np.ones((1000, 1000), np.float32)
def long():
    while True: aten.mm(big, big)
for work in (forever, long, forever):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""",
}


@pytest.mark.parametrize("program", ENDS.values(), ids=[name.replace(" ", "_") for name in ENDS])
def test_the_interpreter_ends(program):
    run("-c", PRELUDE + program, seconds=120)


def test_a_forked_child_calls():
    run(
        "-c",
        PRELUDE
        + """
import os
expected = aten.add(lent(), 1).sum()
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0 if aten.add(lent(), 1).sum() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
""",
        seconds=120,
    )
