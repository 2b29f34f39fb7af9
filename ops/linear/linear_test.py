# SPDX-License-Identifier: Apache-2.0
"""linear in float64, shapes that the kernel cuts in other ways, and how OpenBLAS is opened."""

import os
import subprocess
import sys

import anyop
import numpy as np
import pytest
from anyop.cases.dtype_choices import numpy_dtype


def reference(x, weight, bias):
    with np.errstate(all="ignore"):
        product = np.matmul(x, weight.T)
    return product if bias is None else product + bias


# Thin and long ones are cut for the BLAS, half types into blocks of 256 results and 512 terms.
CUTS = [
    (1, 4096, 300),
    (3, 2500, 65),
    (13, 333, 130),
    (64, 1000, 200),
    (100, 1024, 300),
    (300, 520, 2),
    (513, 40, 257),
    (260, 1100, 270),
]


@pytest.mark.parametrize("M,K,N", CUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_cuts(M, K, N, dtype):
    """Integers make the sums exact in every type and order, so each result must be exact too."""
    generator = np.random.default_rng(M + N)
    dtype = numpy_dtype(dtype)
    x = generator.integers(-1, 2, (M, K)).astype(dtype)
    weight = generator.integers(-1, 2, (N, K)).astype(dtype)
    bias = generator.integers(-9, 10, N).astype(dtype)
    expected = reference(x.astype(float), weight.astype(float), bias.astype(float))
    assert np.abs(expected).max() <= (256 if dtype.itemsize == 2 else 2048)  # exact in bfloat16
    for threads in (1, 2, 3):
        before = anyop.get_num_threads()
        anyop.set_num_threads(threads)
        try:
            np.testing.assert_array_equal(anyop.linear(x, weight, bias).astype(float), expected)
        finally:
            anyop.set_num_threads(before)


def _run(code, **environment):
    environment = {**os.environ, "ANYOP_NUM_THREADS": "1", **environment}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


SETUP = """
import os, numpy as np, anyop
x = np.ones((40, 50), np.float32)
count = lambda: len(os.listdir("/proc/self/task"))
"""


def test_openblas_starts_no_threads():
    """Also where its own variable asks for them; the loading thread's affinity is as before."""
    code = (
        SETUP
        + """
anyop.silu_and_mul(x)
before = count(), os.sched_getaffinity(0)
assert (anyop.linear(x, x) == 50).all()
assert (count(), os.sched_getaffinity(0)) == before
print("same")
"""
    )
    for wanted in ("1", "8"):
        assert _run(code, OPENBLAS_NUM_THREADS=wanted) == "same\n"


def test_wrong_library_is_named():
    code = (
        SETUP
        + """
try:
    anyop.linear(x, x)
except ValueError as error:
    print(error)
assert (anyop.relu(x) == 1).all()
"""
    )
    for path in ("/no/such/library.so", "libm.so.6"):
        text = _run(code, ANYOP_BLAS=path)
        assert text.startswith("linear: ") and "ANYOP_BLAS" in text and path in text, text


def test_works_in_a_forked_child():
    code = (
        SETUP
        + """
anyop.set_num_threads(2)
x = np.ones((500, 300), np.float32)
anyop.linear(x, x)
child = os.fork()
if child == 0:
    os._exit(0 if (anyop.linear(x, x) == 300).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    _run(code)


def test_many_threads_at_once():
    import threading

    x, weight = np.ones((90, 70), np.float32), np.ones((50, 70), np.float32)
    wrong = []

    def work():
        for _ in range(50):
            if not (anyop.linear(x, weight) == 70).all():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
