# SPDX-License-Identifier: Apache-2.0
"""Convolutions of float32 by oneDNN and by products, each in a process of its own; and how oneDNN is opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "ops" / "convolution"
FLAGS = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
FOUND = [p for p in map(Path, (*sys.path, f"{sys.prefix}/lib")) if (p / "libdnnl.so.3").exists()]
pytestmark = pytest.mark.drawn(2, group="engines, each in a process")
ENGINES = {
    "what is there": {},
    "no oneDNN": {"ANYOP_DNNL": "off"},
    "oneDNN below AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX"},
}
PROGRAM = """
import os, sys, anyop, numpy as np
sys.path.insert(0, os.environ["FOLDER"])
from conv_bias_act_backward_test import reference as gradients
from conv_bias_act_test import windows
generator = np.random.default_rng(0)
draw = lambda *sizes: generator.integers(-2, 3, sizes).astype(np.float32)
opened = lambda: "libdnnl" in open("/proc/self/maps").read()
# N, H, W, C, K, R, S, stride, padding, dilation: some images at once, rows of one, with a rest, with channels that
# fill no vector; windows that reach out on all sides, that leave rows and columns out, of one place.
SIZES = [
    (3, 40, 41, 64, 24, 3, 3, 1, 1, 1), (1, 90, 88, 16, 40, 3, 3, 1, 1, 1), (2, 61, 95, 40, 9, 2, 3, 2, 1, 1),
    (1, 90, 90, 33, 20, 3, 3, 1, 2, 2), (20, 9, 9, 32, 130, 1, 1, 1, 0, 1), (9, 21, 20, 64, 64, 1, 1, 2, 0, 1),
    (2, 64, 64, 3, 32, 7, 7, 2, 3, 1), (1, 101, 99, 32, 16, 3, 3, 4, 0, 1), (1, 150, 80, 24, 16, 5, 3, 3, 2, 1),
]
def draws(N, H, W, C, K, R, S, *steps):
    return draw(N, H, W, C), draw(K, R, S, C), steps
"""


def run(code: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM + code],
        env={**os.environ, "ANYOP_NUM_THREADS": "1", "FOLDER": str(FOLDER), **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


EXACT = """
for threads in (1, 3):
    anyop.set_num_threads(threads)
    for sizes in SIZES:
        x, weight, steps = draws(*sizes)
        K, R, S = weight.shape[:3]
        parts = windows(x, R, S, *steps)
        sums = parts.reshape(*parts.shape[:3], -1) @ weight.reshape(K, -1).T
        scale, bias = 2 ** draw(K), draw(K)
        mask, residual = generator.random(sums.shape) > 0.5, draw(*sums.shape)
        found = anyop.conv_bias_act(x, weight, None, None, None, None, *steps, False)
        np.testing.assert_array_equal(found, sums, err_msg=str(sizes))
        found = anyop.conv_bias_act(x, weight, scale, bias, mask, residual, *steps)
        expected = np.maximum(np.where(mask, sums * scale + bias, 0) + residual, 0)
        np.testing.assert_array_equal(found, expected, err_msg=str(sizes))
        grad = draw(*sums.shape)
        found = anyop.conv_bias_act_backward(grad, x, weight, scale, expected, *steps, mask=mask)
        wanted = gradients(grad, x, weight, scale, expected, *steps, True, mask)
        for ours, theirs in zip(found, wanted):
            assert np.abs(theirs).max() < 2**22  # exact in float32
            np.testing.assert_array_equal(ours, theirs, err_msg=str(sizes))
print(opened())
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_convolutions_are_exact(engine):
    """Integers make the sums exact in every order."""
    opened = run(EXACT, **ENGINES[engine]) == "True\n"
    if engine == "no oneDNN":
        assert not opened
    if engine == "what is there" and FOUND and "avx2" in FLAGS:
        assert opened


@pytest.mark.parametrize("engine", ["what is there", "no oneDNN"])
def test_bfloat16_is_rounded_once(engine):
    """The sums are exact in float32."""
    pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
    run(
        """
import ml_dtypes
narrow = lambda x: np.asarray(x).astype(np.float32).astype(ml_dtypes.bfloat16)
for sizes in SIZES:
    x, weight, steps = draws(*sizes)
    K, R, S = weight.shape[:3]
    parts = windows(x, R, S, *steps)
    sums = parts.reshape(*parts.shape[:3], -1) @ weight.reshape(K, -1).T
    scale, bias, grad = 2 ** draw(K), draw(K), draw(*sums.shape)
    inputs = narrow(x), narrow(weight), narrow(scale)
    found = anyop.conv_bias_act(*inputs, narrow(bias), None, None, *steps)
    expected = narrow(np.maximum(sums * scale + bias, 0))
    np.testing.assert_array_equal(found, expected, err_msg=str(sizes))
    found = anyop.conv_bias_act_backward(narrow(grad), *inputs, expected, *steps)
    wanted = gradients(grad, x, weight, scale, expected.astype(np.float32), *steps, True, None)
    for ours, theirs in zip(found, wanted):
        assert np.abs(theirs).max() < 2**22
        np.testing.assert_array_equal(ours, narrow(theirs), err_msg=str(sizes))
""",
        **ENGINES[engine],
    )


def test_the_same_bits_for_any_number_of_threads():
    run("""
normal = lambda *sizes: generator.standard_normal(sizes).astype(np.float32)
for sizes in SIZES:
    x, weight, steps = normal(*sizes[:4]), normal(sizes[4], sizes[5], sizes[6], sizes[3]), sizes[7:]
    grad = np.ones_like(anyop.conv_bias_act(x, weight, None, None, None, None, *steps))
    def bits():
        out = anyop.conv_bias_act(x, weight, None, None, None, None, *steps)
        return [out, *anyop.conv_bias_act_backward(grad, x, weight, None, out, *steps)]
    anyop.set_num_threads(1)
    expected = bits()
    for threads in (2, 3):
        anyop.set_num_threads(threads)
        for found, wanted in zip(bits(), expected):
            np.testing.assert_array_equal(found, wanted, err_msg=f"{sizes}, {threads} threads")
""")


@pytest.mark.parametrize("engine", ["what is there", "no oneDNN"])
def test_nan_is_kept(engine):
    """relu keeps it, oneDNN's does not."""
    run(
        """
for sizes in SIZES[:2]:
    x, weight, steps = draws(*sizes)
    x[0, 1, 1, 1], weight[1] = np.nan, 1
    found = anyop.conv_bias_act(x, weight, None, None, None, None, *steps)
    parts = windows(x, 3, 3, *steps)
    np.testing.assert_array_equal(np.isnan(found[..., 1]), np.isnan(parts).any((3, 4, 5)))
""",
        **ENGINES[engine],
    )


def test_many_kinds_of_one_thread():
    """More than a thread keeps plans for."""
    run("""
weight = draw(64, 1, 1, 256)
for height in range(16, 150):
    x = draw(1, height, 16, 256)
    found = anyop.conv_bias_act(x, weight, relu=False)
    np.testing.assert_array_equal(found, x @ weight.reshape(64, 256).T)
""")


def test_in_a_forked_child():
    run("""
anyop.set_num_threads(2)
x, weight, steps = draws(*SIZES[0])
expected = anyop.conv_bias_act(x, weight, None, None, None, None, *steps)
child = os.fork()
if child == 0:
    found = anyop.conv_bias_act(x, weight, None, None, None, None, *steps)
    os._exit(0 if (found == expected).all() else 1)
assert os.waitpid(child, 0)[1] == 0
""")


def test_openmp_of_the_process_stays_as_it_is():
    """No thread is started, and torch's number of threads is as before."""
    pytest.importorskip("torch", reason="torch is not installed")
    run(
        """
import torch
torch.set_num_threads(3)
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
x, weight, steps = draws(*SIZES[0])
out = anyop.conv_bias_act(x, weight, None, None, None, None, *steps)
anyop.conv_bias_act_backward(out, x, weight, None, out, *steps)
assert (count(), torch.get_num_threads()) == (before, 3), (count(), before)
""",
        OMP_NUM_THREADS="5",
    )


def test_paddle_can_be_imported_behind_a_convolution():
    """Paddle brings a oneDNN of the same name: the process has one, and both work with it."""
    pytest.importorskip("paddle", reason="paddle is not installed")
    run("""
x, weight, steps = draws(*SIZES[0])
expected = anyop.conv_bias_act(x, weight, None, None, None, None, *steps)
import paddle
found = paddle.nn.functional.conv2d(paddle.ones([1, 2, 4, 4]), paddle.ones([3, 2, 3, 3]))
assert float(found.max()) == 18
again = anyop.conv_bias_act(x, weight, None, None, None, None, *steps)
np.testing.assert_array_equal(again, expected)
""")


@pytest.mark.parametrize("path", ["/no/such/library.so", "libm.so.6"])
@pytest.mark.parametrize(
    "call", ["conv_bias_act(x, w)", "conv_bias_act_backward(x, x, w, None, x)"]
)
def test_a_wrong_library_is_named(path, call):
    text = run(
        f"""
x, w = draw(1, 40, 40, 40), draw(40, 1, 1, 40)
try:
    anyop.{call}
except ValueError as error:
    print(error)
""",
        ANYOP_DNNL=path,
    )
    name = call.split("(")[0]
    assert text.startswith(f"{name}: ANYOP_DNNL is ") and path in text, text
    assert "libdnnl.so.3" in text, text
