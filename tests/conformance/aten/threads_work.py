# SPDX-License-Identifier: Apache-2.0
"""Varied calls of ATen in some threads, or very many in one: values right, memory flat.

python tests/conformance/aten/threads_work.py threads --count 8 --calls 100000
python tests/conformance/aten/threads_work.py leak --calls 1000000
"""

from __future__ import annotations

import argparse
import gc
import os
import queue
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable

import anyop.aten as aten
import numpy as np
import torch

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LIMIT_BYTES = (
    6 << 20
)  # what the allocators themselves move; one leaked 48-byte cell a call is 48 MB
LIMIT_OBJECT_BYTES = 12_000  # one object of 24 bytes, leaked by one kind of step alone, is 17,000
RIGHT_ERRORS = (TypeError, ValueError, RuntimeError, IndexError)


def same(found, expected) -> None:
    if not np.array_equal(found, expected):
        raise AssertionError(f"got {found!r:.200}, expected {expected!r:.200}")


def refused(call: Callable) -> None:
    try:
        call()
    except RIGHT_ERRORS:
        return
    raise AssertionError("an error was expected")


class Worker:
    """One thread's calls: values of its own, so that a mixed-up one is seen. Each kind says how many calls it makes."""

    def __init__(self, number: int):
        self.x = X + number
        self.wide = np.arange(number + 2, dtype=np.float64)
        self.out = np.empty_like(self.x)
        self.tensor = torch.from_numpy(self.x.copy())
        self.kept: list = [None] * 7
        self.steps = self.calls = 0
        kinds = (self.values, self.views, self.lists, self.written, self.errors, self.torchs)
        self.kinds = (*kinds, self.random, self.named)

    def step(self) -> None:
        self.calls += self.kinds[self.steps % len(self.kinds)](self.steps)
        self.steps += 1

    def values(self, n: int) -> int:
        same(aten.add(self.x, n % 5, alpha=2), self.x + 2 * (n % 5))
        same(aten.mul(self.wide, self.wide), self.wide * self.wide)
        return 2

    def views(self, n: int) -> int:
        view = aten.transpose(self.x * 1, 0, 1)
        same(view, self.x.T)
        self.kept[n % len(self.kept)] = view
        return 1

    def lists(self, n: int) -> int:
        parts = aten.split(self.x, 1 + n % 3)
        same(aten.cat(list(parts)), self.x)
        self.kept[n % len(self.kept)] = parts[-1]
        return 2

    def written(self, n: int) -> int:
        assert aten.mul(self.x, 3, out=self.out) is self.out
        same(aten.sub_(self.out, self.x), self.x * 2)
        return 2

    def errors(self, n: int) -> int:
        refused(lambda: aten.mm(self.x, self.x))
        refused(lambda: aten.select(self.x, 0, 99) if n % 2 else aten.add(self.x, "x"))
        return 2

    def torchs(self, n: int) -> int:
        if not torch.equal(aten.add(self.tensor, 1), self.tensor + 1):
            raise AssertionError("another value from torch's tensors")
        return 1

    def random(self, n: int) -> int:
        same(aten.rand([3], generator=n), aten.rand([3], generator=n))
        return 2

    def named(self, n: int) -> int:
        found = aten.sum(self.x, [1], keepdim=True, dtype="float64")
        same(found, self.x.sum(1, keepdims=True, dtype=np.float64))
        same(aten.full([n % 4], n, dtype="int64"), [n] * (n % 4))
        return 2


def run_threads(count: int, calls: int) -> None:
    """Each thread's views are dropped by the next one."""
    errors: list = []
    dropped: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in range(count)]
    barrier = threading.Barrier(count)

    def work(number: int) -> None:
        worker = Worker(number)
        barrier.wait()
        try:
            while worker.calls < calls:
                worker.step()
                if worker.steps % 5 == 0:
                    dropped[(number + 1) % count].put(aten.view(self_made(number), [-1]))
                while not dropped[number].empty():
                    view = dropped[number].get()
                    same(view[-1], (number - 1) % count)
                    del view
        except BaseException as error:
            errors.append(f"thread {number}, call {worker.calls}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        sys.exit("\n".join(errors))
    print(f"{count} threads x {calls:,} calls right in {time.perf_counter() - begin:.1f} s")


def self_made(number: int) -> np.ndarray:
    return np.full((2, 50), number, np.float32)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_leak(calls: int) -> None:
    """Memory of the process before and after, and of Python's objects in a shorter run."""
    worker = Worker(1)

    def work(more: int) -> None:
        limit = worker.calls + more
        while worker.calls < limit:
            worker.step()
        gc.collect()

    work(max(4000, calls // 20))
    before, begin = resident_bytes(), time.perf_counter()
    work(calls)
    grown, seconds = resident_bytes() - before, time.perf_counter() - begin
    tracemalloc.start()
    objects = []
    for _ in range(10):  # the first ones fill free lists
        work(2000)
        objects.append(tracemalloc.get_traced_memory()[0])
    more = objects[-1] - objects[4]
    print(
        f"{calls:,} calls in {seconds:.1f} s: memory grew by {grown / 2**20:.2f} MiB, "
        f"Python's objects by {more} bytes in 10,000 calls"
    )
    if grown > LIMIT_BYTES or more > LIMIT_OBJECT_BYTES:
        sys.exit("memory grows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("threads", "leak"))
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--calls", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "threads":
        run_threads(options.count, options.calls)
    else:
        run_leak(options.calls)


if __name__ == "__main__":
    main()
