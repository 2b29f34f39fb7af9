# SPDX-License-Identifier: Apache-2.0
"""Python's entry over many calls: from many threads, without Python's lock, and without keeping or losing memory.

A part of the calls by the commit; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import array
import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop.testing.dlpack import DlpackArray
from drawn import drawn

X = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
W = np.linspace(0.5, 1.5, 64, dtype=np.float32)
OUT, FLOATS = np.empty_like(X), array.array("f", range(8))
BAD = {
    "an unknown keyword": lambda: anyop.rms_norm(X, W, nonsense=1),
    "a missing argument": lambda: anyop.rms_norm(),
    "too many": lambda: anyop.rms_norm(X, W, 1.0, None, None),
    "given twice": lambda: anyop.rms_norm(X, W, x=X),
    "a wrong type": lambda: anyop.rms_norm(X, "text"),
    "a wrong number": lambda: anyop.rms_norm(X, W, "text"),
    "an overflow": lambda: anyop.rms_norm(X, W, 10**400),
    "a wrong shape": lambda: anyop.rms_norm(X, W[1:]),
    "a wrong dtype": lambda: anyop.rms_norm(X, W.astype(np.float64)),
    "a foreign dtype": lambda: anyop.rms_norm(X.astype(object), W),
    "a masked array": lambda: anyop.rms_norm(np.ma.array(X), W),
    "a view": lambda: anyop.rms_norm(X, np.broadcast_to(W[:1], W.shape)),
    "an overlap": lambda: anyop.rms_norm(X, X[0], out=X[:, :]),
    "a wrong result": lambda: anyop.rms_norm(X, W, out=W),
    "a read-only result": lambda: anyop.relu(X, out=memoryview(bytes(64))),
    "a condition": lambda: anyop.topk(X, 65),
    "a wrong index": lambda: anyop.embedding(np.array([4]), X),
    "a wrong word": lambda: anyop.gelu(X, approximate="nonsense"),
    "a wrong dtype name": lambda: anyop.cast(X, "float33"),
    "a DLPack object": lambda: anyop.rms_norm(DlpackArray(X), W[1:]),
    "a buffer": lambda: anyop.rms_norm(array.array("f", [1.0]), W),
}  # fmt: skip


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- threads ----


def test_eight_threads_get_their_own_results():
    """2,000 calls each, of two operators, with new and given results."""
    wrong, start = [], threading.Barrier(8)

    def work(number: int) -> None:
        generator = np.random.default_rng(number)
        x = generator.standard_normal((3, 64 + number)).astype(np.float32)
        weight, out = np.ones(64 + number, np.float32), np.empty_like(x)
        expected = anyop.rms_norm(x, weight), anyop.topk(x, 3)
        start.wait()
        for call in range(1000):
            found = anyop.rms_norm(x, weight, out=out if call % 2 else None)
            values, _ = anyop.topk(x, 3)
            if not (np.array_equal(found, expected[0]) and np.array_equal(values, expected[1][0])):
                wrong.append((number, call))
            if call % 50 == 0:
                try:
                    anyop.rms_norm(x, weight[number + 1 :])
                except ValueError as error:
                    if f"D={64 + number}" not in str(error):  # another thread's message
                        wrong.append((number, str(error)))
            out[...] = 0

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads) and wrong == []


def test_a_long_kernel_lets_other_threads_run():
    """This thread must make progress between the beginning and the end of another's single call."""
    span = []

    def work(x) -> None:
        begin = time.perf_counter()
        anyop.matmul(x, x)
        span.append((begin, time.perf_counter()))

    for n in (1000, 1000, 2000, 4000):  # until the call is long enough on this machine
        x = np.ones((n, n))
        thread, ticks = threading.Thread(target=work, args=(x,)), []
        thread.start()
        while thread.is_alive():
            ticks.append(time.perf_counter())
            time.sleep(0.001)
        thread.join()
        begin, end = span[-1]
        inside = [t for t in ticks if 0.2 < (t - begin) / (end - begin) < 0.8]
        if len(inside) >= 3:
            return
    pytest.fail(f"no progress within calls of {[f'{e - b:.3f} s' for b, e in span]}")


def test_forks_beside_calling_threads():
    """A child forked while other threads are within calls can call, and ends."""
    stop = threading.Event()
    x = np.random.default_rng(1).standard_normal((512, 1024)).astype(np.float32)
    expected = anyop.softmax(x)

    def work() -> None:
        while not stop.is_set():
            anyop.softmax(x)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                good = np.array_equal(anyop.softmax(x), expected)
                os._exit(0 if good else 3)
            deadline = time.monotonic() + 30
            while (status := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.002)
            if status[0] == 0:
                os.kill(child, 9)
                os.waitpid(child, 0)
                pytest.fail("the child hangs")
            assert status[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# ---- memory ----

measures_the_process = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="AddressSanitizer keeps what is freed, so that the process grows",
)
NOTHING = 2000  # bytes over 100 rounds: one object that stayed in each would be twice that and more


def grows(call, count: int, few: int = 0) -> int:
    """Bytes by which the process grows over so many calls, after a quarter to warm up: the least of three times, or
    the first that is below few.
    """
    for _ in range(count // 4):
        call()
    found = []
    for _ in range(3):
        gc.collect()
        before = resident_bytes()
        for _ in range(count):
            call()
        gc.collect()
        found.append(resident_bytes() - before)
        if found[-1] < few:
            break
    return min(found)


def test_a_leak_would_be_seen():
    """In a process of its own: memory that earlier tests have freed would be used first."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "shared")]
    leaks = (
        f"import sys; sys.path[:0] = {folders!r}; import python_memory_test as memory; kept = []\n"
        "print(memory.grows(lambda: kept.append(bytes(600)), 20_000))"  # too large for Python's pools
    )
    found = subprocess.run([sys.executable, "-c", leaks], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) > 20_000 * 300


GOOD = {
    "a new result": lambda: anyop.rms_norm(X, W),
    "a given result": lambda: anyop.rms_norm(X, W, out=OUT),
    "two new results": lambda: anyop.topk(X, 3),
    "a broadcast": lambda: anyop.add(X, W),
    "a DLPack object": lambda: anyop.relu(DlpackArray(X)),
    "a buffer": lambda: anyop.relu(FLOATS),
    "scratch memory": lambda: anyop.linear(X, np.ones((3, 64), np.float32)),
}  # fmt: skip


@measures_the_process
@pytest.mark.parametrize("name", drawn(list(GOOD), 4))
def test_good_calls_do_not_grow_the_process(name):
    """100,000 calls in all; a leak of one object would be 5 MB."""
    call = GOOD[name]
    count = 30_000 if "DLPack" not in name else 8_000
    assert grows(call, count, count * 8) < count * 8


def refuse(call):
    def refused() -> None:
        try:
            call()
        except (TypeError, ValueError, NotImplementedError):
            return
        pytest.fail("was accepted")

    return refused


@measures_the_process
@pytest.mark.parametrize("name", drawn(list(BAD), 6))
def test_bad_calls_do_not_grow_the_process(name):
    assert grows(refuse(BAD[name]), 6_000, 6_000 * 8) < 6_000 * 8


def test_python_sees_no_block_that_stays():
    """By tracemalloc; Python's own stocks of free objects fill up at first."""
    calls = [refuse(call) for call in BAD.values()] + list(GOOD.values())
    calls = drawn(calls, 8)
    found = []
    tracemalloc.start()
    try:
        while len(found) < 15 and min(found, default=NOTHING) >= NOTHING:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(100):
                for call in calls:
                    call()
            gc.collect()
            found.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert min(found) < NOTHING, f"{found} bytes over 100 rounds of {len(calls)} calls"


def references() -> list[int]:
    found = [
        X,
        W,
        X.dtype,
        np.dtype(object),
        np.ndarray,
        anyop.rms_norm,
        None,
        True,
        TypeError,
        ValueError,
        "nonsense",
    ]
    if sys.version_info >= (3, 12):  # None and the like are immortal there
        found = [value for value in found if value not in (None, True, "nonsense")]
    return [sys.getrefcount(value) for value in found]


@pytest.mark.parametrize("name", drawn([*BAD, *GOOD], 8))
def test_references_are_given_back(name):
    call = refuse(BAD[name]) if name in BAD else GOOD[name]
    for _ in range(20):
        call()
    gc.collect()
    before = references()
    for _ in range(1000):
        call()
    gc.collect()
    after = references()
    assert all(abs(b - a) < 100 for a, b in zip(before, after)), (before, after)


def test_results_die_with_their_last_name():
    import weakref

    y = anyop.rms_norm(X, W)
    values, indices = anyop.topk(X, 2)
    watched = [weakref.ref(value) for value in (y, values, indices)]
    assert sys.getrefcount(y) == sys.getrefcount(values) == 2
    del y, values, indices
    assert all(watch() is None for watch in watched)


@measures_the_process
def test_a_result_that_could_not_be_made_leaves_nothing():
    """A second result's refusal lets the first, which was made already, go."""
    wrong = np.empty((4, 3), np.int32)
    call = refuse(lambda: anyop.topk(X, 3, indices=wrong))
    assert grows(call, 6_000) < 6_000 * 8
    huge = np.broadcast_to(np.float32(1), (2**40, 1))
    with pytest.raises((MemoryError, ValueError)):
        anyop.add(huge, np.ones(2**10, np.float32))
    assert np.array_equal(anyop.add(X, W), X + W)
