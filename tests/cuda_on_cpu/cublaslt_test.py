# SPDX-License-Identifier: Apache-2.0
"""Products by cuBLASLt, run by fibers on the CPU with a library of its functions: how it is found, plans, layouts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
sys.path.insert(0, str(Path(__file__).parent))

from fibers import BACKEND, compile_cublaslt, compile_kernels

pytestmark = pytest.mark.drawn(2, together="cuBLASLt on the CPU")
OPERATORS = ["linear", "matmul", "matmul_backward"]
PROGRAM = f"""
import os, sys, threading, anyop, numpy as np, ml_dtypes
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fibers
fibers.register(os.environ["KERNELS"], {OPERATORS!r})
generator = np.random.default_rng(0)
def draw(*sizes, dtype="float32"):
    return generator.integers(-2, 3, sizes).astype(dtype)
def run(function, *arguments, use={BACKEND!r}, **named):
    with anyop.use(use):
        return function(*arguments, **named)
x, w, bias = draw(4, 16), draw(8, 16), draw(8)
expected = x @ w.T + bias
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return compile_kernels(tmp_path_factory.mktemp("kernels"), OPERATORS)


@pytest.fixture(scope="module")
def library():
    return compile_cublaslt()


def run(text: str, kernels: Path, cublaslt: str | Path | None) -> subprocess.CompletedProcess:
    named = {"KERNELS": str(kernels)} | ({"ANYOP_CUBLASLT": str(cublaslt)} if cublaslt else {})
    words = [sys.executable, "-c", PROGRAM + text]
    return subprocess.run(words, env={**os.environ, **named}, capture_output=True, text=True)


def test_layouts_batches_sums_and_threads(kernels, library):
    text = """
for M in (1, 3, 64):
    for N, K in ((1, 1), (5, 3), (8, 16), (33, 40)):
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            a, b, c = draw(M, K, dtype=dtype), draw(N, K, dtype=dtype), draw(N, dtype=dtype)
            exact = a.astype(float) @ b.astype(float).T + c.astype(float)
            assert (run(anyop.linear, a, b, c).astype(float) == exact).all(), (M, N, K, dtype)
            out = np.zeros(M * N + 1, dtype)[1:].reshape(M, N)  # a misaligned start
            assert (run(anyop.linear, a, b, c, out=out) == run(anyop.linear, a, b, c)).all()
for left, right in (((2, 3), (2, 3)), ((7, 6), (7, 6)), ((2, 3), (1, 1)), ((6, 1), (1, 7)), ((1, 0), (1, 1))):
    for turn in (False, True):
        a, b = draw(*left, 4, 6), draw(*right, 6, 5)
        if turn:  # no one stride for all pairs, columns, steps in both directions
            a = np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1)
            b = np.repeat(np.repeat(b, 2, -1), 2, -2)[..., ::2, ::2]
        assert (run(anyop.matmul, a, b) == a @ b).all(), (left, right, turn)
        g = draw(*(a @ b).shape)
        grad_a, grad_b = run(anyop.matmul_backward, g, a, b)
        whole = g @ b.swapaxes(-1, -2), a.swapaxes(-1, -2) @ g
        for found, full, of in ((grad_a, whole[0], a), (grad_b, whole[1], b)):
            kept = tuple(d for d in (0, 1) if of.shape[d] == 1)
            assert (found == full.sum(kept, keepdims=True)).all(), (left, right, turn)
wrong = []
def repeat(seed):  # more kinds of calls than are kept, by threads that meet
    for size in np.random.default_rng(seed).integers(1, 40, (300, 3)):
        M, N, K = map(int, size)
        a, b = np.full((M, K), 2, np.float32), np.full((N, K), 3, np.float32)
        if not (run(anyop.linear, a, b) == 6 * K).all():
            wrong.append(size)
threads = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
assert not wrong, wrong[:5]
"""
    found = run(text, kernels, library)
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-DVERSION=120400",), "it is version 12.4, and 12.9 or newer is needed"),
        (
            ("-DWITHOUT_CREATE",),
            "it is version 13.1, and 12.9 or newer is needed: it has no function cublasLtCreate",
        ),
    ],
)
def test_a_library_that_does_not_serve_is_an_error(kernels, flags, words):
    other = compile_cublaslt(*flags)
    text = """
for _ in range(2):
    try:
        run(anyop.linear, x, w, bias)
        raise SystemExit("it ran")
    except ValueError as error:
        print(error)
"""
    found = run(text, kernels, other)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.count(f"ANYOP_CUBLASLT is {other}, expected") == 2
    assert found.stdout.count(words) == 2


def test_where_there_is_none_the_next_of_the_route_runs(kernels, tmp_path):
    """It is said once, with the command that installs it; `off` says so, a missing file is an error."""
    text = """
for _ in range(2):
    assert (run(anyop.linear, x, w, bias, use="cuda_on_cpu, cpu") == expected).all()
"""
    found = run(text, kernels, "off")
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stderr.count("ANYOP_CUBLASLT is off; cpu runs instead") == 1
    found = run(text, kernels, tmp_path / "missing.so")
    assert found.returncode == 1
    assert f"ValueError: linear: ANYOP_CUBLASLT is {tmp_path}/missing.so, expected" in found.stderr


def test_where_there_is_none_and_no_other_kernel(kernels, monkeypatch):
    """NotImplementedError with the command that installs it and where it was looked for, each time."""
    monkeypatch.delenv("ANYOP_CUBLASLT", raising=False)
    monkeypatch.setenv("ANYOP_FALLBACK", "error")
    text = """
import ctypes
for major in (12, 13):
    try:
        ctypes.CDLL(f"libcublasLt.so.{major}")
        print("there is one")
    except OSError:
        pass
for dtype in ("float32", "float64"):
    for _ in range(2):
        try:
            run(anyop.linear, x.astype(dtype), w.astype(dtype))
        except NotImplementedError as error:
            print(error)
"""
    found = run(text, kernels, None)
    assert found.returncode == 0, found.stderr[-2000:]
    lines = found.stdout.splitlines()
    if "there is one" in lines:
        pytest.skip("the loader finds a cuBLASLt on this machine")
    assert len(lines) == 4, lines
    for line in lines:
        assert "cuBLASLt 12.9 or newer was not found: pip install nvidia-cublas, or set" in line
        assert "Looked for" in line and "libcublasLt.so.13" in line and "libcublasLt.so.12" in line


def test_one_that_is_found_and_too_old_is_named(kernels, monkeypatch):
    """Its name, its version and the one that is needed; the search goes on."""
    name = "libcublasLt.so.12"
    old = compile_cublaslt("-DVERSION=120400", f"-Wl,-soname,{name}", name=name)
    monkeypatch.delenv("ANYOP_CUBLASLT", raising=False)
    monkeypatch.setenv("ANYOP_FALLBACK", "error")
    text = f"""
import ctypes
ctypes.CDLL({str(old)!r}, mode=ctypes.RTLD_GLOBAL)
try:
    run(anyop.linear, x, w, bias)
    print("it ran")
except NotImplementedError as error:
    print(error)
"""
    found = run(text, kernels, None)
    assert found.returncode == 0, found.stderr[-2000:]
    if found.stdout == "it ran\n":
        pytest.skip("the loader finds a newer cuBLASLt on this machine")
    words = "libcublasLt.so.12: it is version 12.4, and 12.9 or newer is needed"
    assert words in found.stdout, found.stdout
