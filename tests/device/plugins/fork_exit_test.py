# SPDX-License-Identifier: Apache-2.0
"""The process' ends: a fork after use is refused clearly, an exit with work in flight is a good one."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.anyplatform, pytest.mark.usefixtures("platform")]

FORK = """
import os, signal
def run(child):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 9
        try:
            child()
        except RuntimeError as error:
            print("refused:", error, flush=True)
            code = 3 if "fork" in str(error).lower() else 4
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
USES = """
x = torch.ones(4, device="anyop") + 1
torch.anyop.synchronize()
uses = {
    "new tensor": lambda: torch.ones(2, device="anyop"),
    "operator": lambda: print((x + 1).tolist()),
    "in place": lambda: x.add_(1),
    "copy": lambda: x.cpu(),
    "move": lambda: torch.ones(2).to("anyop"),
    "synchronize": lambda: torch.anyop.synchronize(),
    "stream": lambda: torch.anyop.Stream(),
    "random": lambda: torch.rand(2, device="anyop"),
    "pinned": lambda: torch.ones(2).pin_memory().to("anyop", non_blocking=True),
    "the CPU": lambda: os._exit(7 if (torch.ones(9) + 1).sum() == 18 else 8),
}
for name, use in uses.items():
    print(f"{name}={run(use)}", flush=True)
print("parent", (x * 2).tolist())
"""


def test_use_after_a_fork_is_refused(program):
    """Each use in a child of its own, which may use the CPU; the parent goes on."""
    found = program(FORK + USES)
    codes = dict(line.split("=") for line in found.splitlines() if "=" in line)
    assert codes.pop("the CPU") == "7", found
    assert len(codes) == 9 and set(codes.values()) == {"3"}, found
    assert "parent [4.0, 4.0, 4.0, 4.0]" in found


def test_a_fork_before_use_is_none(program):
    """The import alone starts nothing that a fork would break."""
    work = "lambda: os._exit((torch.ones(3, device='anyop') + 1).sum().item() != 6)"
    assert "child 0" in program(f"{FORK}\nprint('child', run({work}))")


ENDS = {
    "work in flight": """
from slow_stream import sleep
x, source = torch.zeros(1000, device="anyop"), torch.ones(1000).pin_memory()
sleep(300)
x.copy_(source, non_blocking=True)
side = torch.anyop.Stream()
with torch.anyop.stream(side):
    sleep(300)
    done = side.record_event()
""",
    "tensors in cycles and modules": """
import atexit, json
x = [torch.ones(3, device="anyop", requires_grad=True)]; x.append(x)
json.mine = (x[0] * 2).sum()
atexit.register(lambda: print((x[0] + 1).tolist()))
generator, stream, event = torch.Generator("anyop"), torch.anyop.Stream(), torch.anyop.Event()
event.record(); pinned = torch.ones(9).pin_memory()
""",
    "daemon threads": """
import sys, threading, time
import anyop
x, counts = torch.ones(64, 64, device="anyop"), [0] * 4
def native():
    try: anyop.gelu(x)
    except NotImplementedError: pass  # a device without kernels
works = native, lambda: (x + 1).cpu(), lambda: (x @ x).sum(), torch.anyop.Stream
def forever(i):
    while True:
        works[i]()
        counts[i] += 1
threads = [threading.Thread(target=forever, args=(i,), daemon=True) for i in range(4)]
for thread in threads: thread.start()
while min(counts) < 3:
    time.sleep(0.01)
    assert all(thread.is_alive() for thread in threads)
sys.setswitchinterval(1e-5)
time.sleep(0.05)
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_exit_code_is_zero(end, program):
    for _ in range(20 if os.environ.get("ANYOP_TEST_FULL") == "1" else 1):
        process = program(ENDS[end], whole=True)
        assert process.returncode == 0, process.stderr[-2000:]
        assert "Error" not in process.stderr and "terminate" not in process.stderr, process.stderr


def test_the_exit_code_is_the_programs(program):
    process = program(ENDS["work in flight"] + "\nraise SystemExit(3)", whole=True)
    assert process.returncode == 3
    process = program(ENDS["work in flight"] + "\nraise ValueError('mine')", whole=True)
    assert process.returncode == 1 and "ValueError: mine" in process.stderr
