# SPDX-License-Identifier: Apache-2.0
"""Convolutions by cuDNN, run by fibers on the CPU with a library of its functions: graphs, plans, how it is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
sys.path.insert(0, str(Path(__file__).parent))

from fibers import BACKEND, compile_cudnn, compile_kernels

pytestmark = pytest.mark.drawn(2, together="cuDNN on the CPU")
OPERATORS = ["conv_bias_act", "conv_bias_act_backward"]
PROGRAM = f"""
import itertools, os, sys, threading, anyop, numpy as np, ml_dtypes
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fibers
fibers.register(os.environ["KERNELS"], {OPERATORS!r}, os.environ.get("KERNEL", "cuda"))
generator = np.random.default_rng(0)
def draw(*sizes, dtype="float32", low=-2, shift=0):
    drawn = generator.integers(low, 3, sizes).astype(dtype)
    place = np.zeros(drawn.size + shift, dtype)[shift:].reshape(sizes)  # shift: a start that is not aligned
    place[...] = drawn
    return place
def run(function, *arguments, use={BACKEND!r}, **named):
    with anyop.use(use):
        return function(*arguments, **named)
forward, backward = anyop.conv_bias_act, anyop.conv_bias_act_backward
x, w = draw(2, 6, 7, 3), draw(4, 3, 2, 3)
expected = forward(x, w, relu=False)
"""
# Small integers: sums are exact, and rounded once where that is so.
EXACTLY = """
tried = 0
for dtype in sys.argv[1].split(","):
    for stride, padding, dilation, shift in [(1, 1, 1, 0), (2, 0, 1, 1), (3, 2, 2, 1)]:
        x, w = draw(2, 6, 7, 5, dtype=dtype, shift=shift), draw(4, 3, 2, 5, dtype=dtype, shift=shift)
        steps = (stride, padding, dilation)
        of = forward(x, w, None, None, None, None, *steps, False).shape
        scale, bias = draw(4, dtype=dtype, low=1), draw(4, dtype=dtype)
        mask, residual = generator.random(of) < 0.5, draw(*of, dtype=dtype)
        grad = draw(*of, dtype=dtype)
        ends = itertools.product((None, scale), (None, bias), (None, mask), (None, residual), (False, True))
        for *more, relu in ends:
            out = forward(x, w, *more, *steps, relu)
            memory = np.zeros(out.size + shift, dtype)[shift:].reshape(of)
            assert run(forward, x, w, *more, *steps, relu, out=memory) is memory
            assert (memory == out).all(), (dtype, steps, relu, [m is not None for m in more])
            given = grad, x, w, more[0], out, *steps, relu, more[2]
            for wanted in ({}, {"grad_residual": False}, {"grad_x": False, "grad_weight": False, "grad_bias": False}):
                found, right = run(backward, *given, **wanted), backward(*given, **wanted)
                for name, a, b in zip(("x", "weight", "bias", "residual"), found, right):
                    assert (a is None) == (b is None) and (a is None or (a == b).all()), (name, dtype, steps)
            tried += 1
print(tried)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return compile_kernels(tmp_path_factory.mktemp("kernels"), OPERATORS)


@pytest.fixture(scope="module")
def library():
    return compile_cudnn()


def run(
    text: str, kernels: Path, cudnn: str | Path | None, *arguments: str, **named: str
) -> subprocess.CompletedProcess:
    named |= {"KERNELS": str(kernels)} | ({"ANYOP_CUDNN": str(cudnn)} if cudnn else {})
    words = [sys.executable, "-c", PROGRAM + text, *arguments]
    return subprocess.run(words, env={**os.environ, **named}, capture_output=True, text=True)


def done(found: subprocess.CompletedProcess) -> str:
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


@pytest.mark.parametrize("flags", [(), ("-DWITHOUT_FUSION",)], ids=["one graph", "in two"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_that_comes_behind_sums(kernels, dtype, flags):
    """In one graph, by a second kernel; at any start, in all steps, with gradients in every combination."""
    made = compile_cudnn(*flags)
    assert int(done(run(EXACTLY, kernels, made, dtype))) == 96


def test_float32_is_exact_but_where_tf32_is_asked_for(kernels, library):
    """The library's engines with tensor cores round to TF32; they are taken for cuda_tf32 alone."""
    text = """
x, w = np.full((1, 2, 2, 1), 1 + 2.0**-20, np.float32), np.ones((1, 1, 1, 1), np.float32)
found = [run(forward, x, w, relu=relu).ravel()[0] for relu in (False, True)]
found += [part.ravel()[0] for part in run(backward, x, x * 0 + x, w, None, x)[:1]]
print(*[float(f) == 1 + 2.0**-20 for f in found], *[float(f) == 1 for f in found])
"""
    assert done(run(text, kernels, library)).split() == ["True"] * 3 + ["False"] * 3
    found = done(run(text, kernels, library, KERNEL="cuda_tf32")).split()
    assert found == ["False"] * 3 + ["True"] * 3


@pytest.mark.parametrize("flags", [(), ("-DWITHOUT_FUSION",)], ids=["one graph", "in two"])
def test_nan_and_infinities(kernels, flags):
    """relu keeps NaN, and a mask makes 0 of what is not finite."""
    text = """
for dtype in ("float32", "bfloat16"):
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32).astype(dtype).reshape(1, 2, 2, 1)
    one = np.ones((1, 1, 1, 1), dtype)
    found = run(forward, x, one).astype("float32").ravel()
    assert np.isnan(found[0]) and (found[1:] == [np.inf, 0, 1]).all(), found
    mask = np.array([False, False, True, False]).reshape(x.shape)
    found = run(forward, x, one, None, None, mask, relu=False).astype("float32").ravel()
    assert (found == [0, 0, -np.inf, 0]).all(), found
    grad = run(backward, x, x * 0 + one, one, None, one + x * 0, mask=mask)[0].astype("float32").ravel()
    assert (grad == [0, 0, -np.inf, 0]).all(), grad
"""
    done(run(text, kernels, compile_cudnn(*flags)))


def test_threads_that_meet_and_more_kinds_than_are_kept(kernels, library):
    """1,024 kinds are kept for ever; those that come later are the next one's, said once."""
    text = """
wrong = []
def repeat(seed):
    for size in np.random.default_rng(seed).integers(1, 8, (60, 3)):
        H, C, K = map(int, size)
        a, b = np.full((1, H, H, C), 2, np.float32), np.full((K, 1, 1, C), 3, np.float32)
        if not (run(forward, a, b) == 6 * C).all():
            wrong.append(size)
threads = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
assert not wrong, wrong[:5]
one = np.ones((1, 1, 1, 1), np.float32)
for size in range(1, 1100):
    image = np.ones((1, 1, size, 1), np.float32)
    assert (run(forward, image, one, relu=False, use="cuda_on_cpu, cpu") == 1).all()
assert (run(forward, image[:, :, :1], one, relu=False) == 1).all()  # one that is kept
"""
    found = run(text, kernels, library)
    done(found)
    assert found.stderr.count("1024 kinds of convolutions by cuDNN are kept; cpu runs instead") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-DVERSION=8907",), "it is version 8.9, and 9.0 or newer is needed"),
        (
            ("-DWITHOUT_CREATE",),
            "it is version 9.28, and 9.0 or newer is needed: it has no function cudnnCreate",
        ),
    ],
)
def test_a_library_that_does_not_serve_is_an_error(kernels, flags, words):
    other = compile_cudnn(*flags)
    text = """
for _ in range(2):
    try:
        run(forward, x, w)
        raise SystemExit("it ran")
    except ValueError as error:
        print(error)
"""
    said = done(run(text, kernels, other))
    assert said.count(f"ANYOP_CUDNN is {other}, expected") == 2
    assert said.count(words) == 2


def test_where_it_cannot_the_next_of_the_route_runs(kernels, tmp_path):
    """Without a library, and without an engine: said once, with the reason."""
    text = """
for _ in range(2):
    assert (run(forward, x, w, relu=False, use="cuda_on_cpu, cpu") == expected).all()
    run(backward, expected, x, w, None, expected, relu=False, use="cuda_on_cpu, cpu")
with anyop.use("cuda_on_cpu, cpu"):
    print(anyop.explain("conv_bias_act", x, w))
"""
    found = run(text, kernels, "off")
    done(found)
    assert found.stderr.count("ANYOP_CUDNN is off; cpu runs instead") == 2
    found = run(text, kernels, compile_cudnn("-DWITHOUT_ENGINES"))
    done(found)
    words = "cuDNN has no engine for this convolution: the last"
    assert found.stderr.count(f"{words}; cpu runs instead") == 2
    assert f"has left a call to the next: {words}" in found.stdout
    found = run(text, kernels, tmp_path / "missing.so")
    assert found.returncode == 1
    assert (
        f"ValueError: conv_bias_act: ANYOP_CUDNN is {tmp_path}/missing.so, expected" in found.stderr
    )


def test_where_there_is_none_and_no_other_kernel(kernels, monkeypatch):
    """NotImplementedError with the command that installs it and where it was looked for, each time."""
    monkeypatch.delenv("ANYOP_CUDNN", raising=False)
    monkeypatch.setenv("ANYOP_FALLBACK", "error")
    text = """
import ctypes
try:
    ctypes.CDLL("libcudnn.so.9")
    print("there is one")
except OSError:
    pass
for _ in range(2):
    try:
        run(forward, x, w)
    except NotImplementedError as error:
        print(error)
"""
    lines = done(run(text, kernels, None)).splitlines()
    if "there is one" in lines:
        pytest.skip("the loader finds a cuDNN on this machine")
    assert len(lines) == 2, lines
    for line in lines:
        assert "cuDNN 9 was not found: pip install nvidia-cudnn-cu13 (or -cu12), or set" in line
        assert "Looked for" in line and "libcudnn.so.9" in line
