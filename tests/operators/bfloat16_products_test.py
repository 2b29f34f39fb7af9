# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 by each engine: dot products, oneDNN, OpenBLAS; and how oneDNN is opened."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")

FLAGS = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
FOUND = [p for p in map(Path, (*sys.path, f"{sys.prefix}/lib")) if (p / "libdnnl.so.3").exists()]
HAS_INSTRUCTION = "avx512_bf16" in FLAGS and "avx512bw" in FLAGS
pytestmark = pytest.mark.drawn(2, group="engines, each in a process")
ENGINES = {
    "what is there": {},
    "no oneDNN": {"ANYOP_DNNL": "off"},
    "oneDNN below AVX512-BF16": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}
PROGRAM = """
import os, anyop, numpy as np, ml_dtypes
generator = np.random.default_rng(0)
draw = lambda *sizes: generator.integers(-1, 2, sizes).astype(ml_dtypes.bfloat16)
def check(found, expected, what):
    assert np.abs(expected).max() <= 256  # exact in bfloat16
    assert (found.astype(float) == expected).all(), what
wide = lambda x: x.astype(float)
opened = lambda: "libdnnl" in open("/proc/self/maps").read()
"""
# Dot products and panels with and without a rest, of more terms than stay in a cache; columns of b
# apart and in one piece, rows; batches of one matrix, of many, of several strides; transposed
# operands, views with gaps, sums over a batch.
PRODUCTS = """
for threads in (1, 2, 3):
    anyop.set_num_threads(threads)
    for M in (1, 2, 3, 4, 5, 16, 64, 200, 300):
        for N, K in ((1, 1), (5, 33), (64, 64), (130, 100), (700, 300), (1031, 130)):
            x, w, bias = draw(M, K), draw(N, K), draw(N)
            check(anyop.linear(x, w, bias), wide(x) @ wide(w).T + wide(bias), (M, N, K))
            check(anyop.linear(x, w), wide(x) @ wide(w).T, (M, N, K))
            g = draw(M, N)
            dx, dw, db = anyop.linear_backward(g, x, w)
            check(dx, wide(g) @ wide(w), (M, N, K))
            check(dw, wide(g).T @ wide(x), (M, N, K))
    for batch in ((1,), (3,), (40,), (4, 5), (2, 1, 9)):
        a, b = draw(*batch, 70, 40), draw(*batch, 40, 66)
        check(anyop.matmul(a, b), wide(a) @ wide(b), batch)
        shared = b[..., :1, :, :] if len(batch) > 1 else b[0]
        check(anyop.matmul(a, shared), wide(a) @ wide(shared), batch)
        turned = draw(*batch, 66, 40).swapaxes(-1, -2)
        check(anyop.matmul(a, turned), wide(a) @ wide(turned), batch)
        gaps = draw(*batch, 70, 80)[..., :, 20:60]
        check(anyop.matmul(gaps, b), wide(gaps) @ wide(b), batch)
        steps = draw(*batch, 70, 80)[..., :, ::2]
        check(anyop.matmul(steps, b), wide(steps) @ wide(b), batch)
        for M in (1, 20, 70, 140):  # columns with gaps, of each matrix; steps in all rows, or in the one
            columns = draw(*batch, 40, 150)[..., 5 : 5 + M].swapaxes(-1, -2)
            spread = draw(*batch, M, 120)[..., ::3]
            for right in (b, turned):
                check(anyop.matmul(columns, right), wide(columns) @ wide(right), (batch, M))
                check(anyop.matmul(spread, right), wide(spread) @ wide(right), (batch, M))
"""


def run(code: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM + code],
        env={**os.environ, "ANYOP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_products_are_exact(engine):
    """Integers make the sums exact in every order."""
    opened = run(PRODUCTS + "print(opened())", **ENGINES[engine]) == "True\n"
    if engine == "no oneDNN" or not HAS_INSTRUCTION:
        assert not opened


def test_gradients_have_the_same_bits_for_any_number_of_threads():
    run("""
normal = lambda *sizes: generator.standard_normal(sizes).astype(ml_dtypes.bfloat16)
for M in (1, 5, 100, 200, 300, 700):
    g, x, w = normal(M, 400), normal(M, 600), normal(400, 600)
    def bits():
        return [t.view(np.uint16) for t in anyop.linear_backward(g, x, w)]
    anyop.set_num_threads(1)
    expected = bits()
    for threads in (2, 3, 5):
        anyop.set_num_threads(threads)
        for found, wanted in zip(bits(), expected):
            np.testing.assert_array_equal(found, wanted, err_msg=f"{M} rows, {threads} threads")
""")


def test_one_beside_the_package_is_opened():
    if not HAS_INSTRUCTION or not FOUND:
        pytest.skip(f"AVX512-BF16: {HAS_INSTRUCTION}; libdnnl.so.3 beside the package: {FOUND}")
    cache = Path(anyop.__file__).parents[2] / "CMakeCache.txt"  # of a build that is not installed
    if cache.exists() and re.search("ANYOP_CPU_ISA:STRING=[13]", cache.read_text()):
        pytest.skip("this build is for processors below AVX-512")
    assert run("anyop.linear(draw(90, 40), draw(50, 40)); print(opened())") == "True\n"


def test_paddle_can_be_imported_behind_a_product():
    """Paddle brings a oneDNN of the same name: the process has one, and both work with it."""
    if not importlib.util.find_spec("paddle"):
        pytest.skip("paddle is not installed")
    text = run("""
x, w = draw(300, 40), draw(50, 40)
check(anyop.linear(x, w), wide(x) @ wide(w).T, "linear")
import paddle
found = paddle.nn.functional.conv2d(paddle.ones([1, 2, 4, 4]), paddle.ones([3, 2, 3, 3]))
assert float(found.max()) == 18
check(anyop.linear(x, w), wide(x) @ wide(w).T, "linear")
print("same")
""")
    assert text.endswith("same\n")


def test_many_kinds_of_one_thread():
    """More than a thread keeps plans for."""
    run("""
for M in range(17, 400):
    x, w = draw(M, 32), draw(48, 32)
    check(anyop.linear(x, w), wide(x) @ wide(w).T, M)
""")


def test_openmp_of_the_process_stays_as_it_is():
    """No thread is started, and torch's number of threads is as before."""
    pytest.importorskip("torch", reason="torch is not installed")
    text = run(
        """
import torch
torch.set_num_threads(3)
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
x, w = draw(100, 300), draw(500, 300)
check(anyop.linear(x, w), wide(x) @ wide(w).T, "linear")
assert (count(), torch.get_num_threads()) == (before, 3), (count(), before)
print("same")
""",
        OMP_NUM_THREADS="5",
    )
    assert text == "same\n"


def test_in_a_forked_child():
    run("""
anyop.set_num_threads(2)
x, w = draw(100, 300), draw(500, 300)
expected = wide(x) @ wide(w).T
check(anyop.linear(x, w), expected, "parent")
child = os.fork()
if child == 0:
    os._exit(0 if (anyop.linear(x, w).astype(float) == expected).all() else 1)
assert os.waitpid(child, 0)[1] == 0
""")


def test_a_fork_while_others_make_primitives():
    """oneDNN's lock may be held in the child for ever: it goes without. 2 of 150 hung before."""
    forks = 600 if os.environ.get("ANYOP_TEST_FULL") else 60
    text = run(f"""
import signal, threading
ones = lambda *sizes: np.ones(sizes, ml_dtypes.bfloat16)
anyop.set_num_threads(1)
weight, done = ones(600, 1024), False
def work():
    for count in range(10**9):
        if done:
            return
        anyop.linear(ones(17 + count % 300, 1024), weight)
anyop.linear(ones(20, 64), ones(80, 64))  # Python's own import may hold a lock, too
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
ends = []
for number in range({forks}):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        found = anyop.linear(ones(400 + number, 64), ones(90, 64))
        os._exit(0 if (found.astype(float) == 64).all() else 3)
    ends.append(os.waitpid(child, 0)[1])
done = True
for thread in threads:
    thread.join()
print(set(ends))
""")
    assert text == "{0}\n"


@pytest.mark.parametrize("path", ["/no/such/library.so", "libm.so.6"])
def test_a_wrong_library_is_named(path):
    text = run(
        """
x = draw(100, 300)
try:
    anyop.linear(x, x)
except ValueError as error:
    print(error)
""",
        ANYOP_DNNL=path,
    )
    assert text.startswith("linear: ANYOP_DNNL is ") and path in text, text
    assert "libdnnl.so.3" in text, text
