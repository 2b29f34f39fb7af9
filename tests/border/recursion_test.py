# SPDX-License-Identifier: Apache-2.0
"""Operators whose arguments or kernels call operators without end: RecursionError, on every size of stack."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import numpy as np, anyop

x, w = np.ones((2, 4), np.float32), np.ones(4, np.float32)


def kernel(x):
    return anyop.relu(np.asarray(x))


class Number:
    def __float__(self):
        return float(anyop.rms_norm(x, w, self)[0, 0])


class Shows:
    def __dlpack__(self, **keywords):
        return anyop.rms_norm(x, self)


def run(call):
    try:
        call()
    except RecursionError:
        found.append("RecursionError")
    except BaseException as error:
        found.append(f"{type(error).__name__}: {error}"[:200])


def routed():
    with anyop.use("endless"):
        anyop.relu(x)


anyop.register("relu", "endless", kernel)
found = []
calls = [routed, lambda: anyop.rms_norm(x, w, Number()), lambda: anyop.rms_norm(x, Shows())]
if sys.argv[1] == "torch":
    import torch
    class Index:
        def __index__(self):
            return int(anyop.aten.sum(x, [self])[0])
    calls = [lambda: anyop.aten.sum(x, [Index()])]
    anyop.register("relu", "endless_torch", lambda x: anyop.relu(x), framework="torch")
    def swept():
        with anyop.use("endless_torch"):
            anyop.relu(torch.ones(3))
else:
    swept = routed
for limit in range(200, 260):  # so that it is reached in every function that takes part
    sys.setrecursionlimit(limit)
    run(swept)
    sys.setrecursionlimit(1000)
for call in calls:
    run(call)  # at Python's own limit
    sys.setrecursionlimit(100_000)
    run(call)  # at the end of the stack
    for size in (64 << 10, 256 << 10, 1 << 20):
        threading.stack_size(size)
        thread = threading.Thread(target=run, args=(call,))
        thread.start()
        thread.join()
    sys.setrecursionlimit(1000)
    assert np.array_equal(anyop.relu(x), x)
print(*found, sep="\\n")
"""


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_recursion_ends_with_an_exception(kind):
    if kind == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(done.stdout.splitlines()) == {"RecursionError"}, done.stdout
