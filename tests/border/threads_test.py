# SPDX-License-Identifier: Apache-2.0
"""The process's threads: how many, beside which others, after a fork, and what sets them."""

import functools
import os
import subprocess
import sys

import prepared
import pytest

PRELUDE = """
import os, signal, sys
import numpy as np

def names():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                found.append(file.read().strip())
        except OSError:  # a thread that ended since it was listed
            pass
    return found

def workers():
    return sum(name.startswith("anyop-") for name in names())

def work():
    x = np.random.default_rng(0).standard_normal((512, 1024), np.float32)
    y = anyop.gelu(x)
    z = anyop.linear(x, np.ones((256, 1024), np.float32))
    np.testing.assert_allclose(z[:, 0], x.sum(1, dtype=np.float64), rtol=1e-3, atol=1e-3)
    return float(y.sum()) + float(z.sum())
"""


def run(
    program: str, seconds: float = 120, good: bool = True, start=subprocess.run, **environment: str
) -> str:
    """Run a program in a process of its own; what it printed."""
    variables = {**os.environ, **environment}
    process = start(
        [sys.executable, "-c", PRELUDE + program],
        env=variables,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert (process.returncode == 0) == good, process.stdout + process.stderr
    return process.stdout.strip() if good else process.stderr


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_process_gets_no_more_threads_than_it_asked_for(count):
    program = f"""
before = len(names())
import anyop
imported = len(names())
anyop.set_num_threads({count})
work(), work()
print(imported - before, len(names()) - before, workers())
"""
    # OpenBLAS is there too by then, and makes none of its own.
    assert run(program) == f"0 {count - 1} {count - 1}"


def test_no_second_openmp_is_brought_in():
    program = """
import anyop
work()
print(any(name in open("/proc/self/maps").read() for name in ("libgomp", "libomp", "libiomp")))
"""
    assert run(program) == "False"


def test_torchs_threads_stay_as_they_are():
    pytest.importorskip("torch")
    program = """
import torch
torch.set_num_threads(2)
import anyop
anyop.set_num_threads(2)
x = torch.randn(512, 1024)
for _ in range(3):
    x @ x.T
before = len(names())
for _ in range(3):
    x @ x.T
    work()
print(len(names()) - before, torch.get_num_threads())
"""
    assert run(program) == "1 2"


@pytest.mark.skipif(
    "libtsan" in os.environ.get("LD_PRELOAD", ""),
    reason="ThreadSanitizer refuses threads in a forked child",
)
def test_a_forked_child_works():
    program = """
import anyop
anyop.set_num_threads(3)
expected = work()
for _ in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        good = np.isclose(work(), expected, rtol=1e-6) and workers() == 2
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
assert np.isclose(work(), expected, rtol=1e-6)
print("right")
"""
    assert run(program, 400) == "right"


def test_python_threads_call_at_once():
    program = """
import threading
import anyop
anyop.set_num_threads(2)
expected = work()
found = []
threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
# Who finds the pool at work computes alone; a product divided otherwise differs in its last bits.
print(np.allclose(found, [expected] * 6, rtol=1e-6), workers())
"""
    assert run(program) == "True 1"


def test_exit_beside_a_running_daemon_thread():
    program = """
import threading, time
import anyop
anyop.set_num_threads(2)
def forever():
    while True: work()
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
print("end")
"""
    for _ in range(5):
        assert run(program) == "end"


def test_the_environment_sets_the_number():
    program = "import anyop; print(anyop.get_num_threads())"
    assert run(program, ANYOP_NUM_THREADS="3") == "3"
    default = int(run(program, ANYOP_NUM_THREADS=""))
    assert 1 <= default <= len(os.sched_getaffinity(0))
    pinned = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
    assert run(pinned + program, ANYOP_NUM_THREADS="") == "1"


@pytest.mark.parametrize("value", ["0", "-2", "two", "2.5", "1025", "2 threads"])
def test_a_bad_number_in_the_environment_is_refused_at_import(value):
    text = run("import anyop", good=False, ANYOP_NUM_THREADS=value)
    assert f"ValueError: ANYOP_NUM_THREADS is '{value}', expected a whole number" in text


@pytest.mark.parametrize("count", ["0", "-1", "1025", "2.0", "'2'", "None"])
def test_set_num_threads_refuses_what_is_no_number(count):
    program = f"""
import anyop
before = anyop.get_num_threads()
try:
    anyop.set_num_threads({count})
except ValueError as error:
    assert "expected an int from 1 to 1024" in str(error)
    print(anyop.get_num_threads() == before)
"""
    assert run(program) == "True"


@pytest.mark.parametrize(
    "setup",
    [
        "import torch\nx, w = torch.ones(64, 64, requires_grad=True), torch.ones(64)",
        "import paddle\nx, w = paddle.ones([64, 64]), paddle.ones([64])\nx.stop_gradient = False",
    ],
    ids=["torch", "paddle"],
)
def test_first_calls_that_need_a_frameworks_adapter(setup):
    """Some while another thread still imports it: those of Paddle were a KeyError."""
    pytest.importorskip(setup.split()[1], reason="the framework is not installed")
    program = f"""
{setup}
import threading, time, anyop
errors = []
def work(number):
    time.sleep(number * 0.02)
    try:
        anyop.rms_norm(x, w)
    except Exception as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(errors)
"""
    with_it = functools.partial(prepared.run, setup.split()[1])
    assert run(program, start=with_it) == "[]"
