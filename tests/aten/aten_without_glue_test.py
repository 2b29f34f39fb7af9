# SPDX-License-Identifier: Apache-2.0
"""Where there is no compiler: torch's C shim does its part, and the rest says what is missing."""

from __future__ import annotations

import sys

import prepared
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
LOANS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)
HEAD = """
import gc, sys
import numpy as np, torch
from anyop import aten
def refused(kind, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"not refused: {text}")
x = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYOP_TORCH_ATEN_GLUE", "0")

    def run(text: str) -> None:
        done = prepared.run(
            "torch",
            [sys.executable, "-c", HEAD + text],
        )
        assert done.returncode == 0, done.stderr
        assert "goes without its glue" in done.stderr

    return run


@pytest.mark.skipif(not LOANS, reason="torch's C shim lends memory from 2.11 on")
def test_values(run):
    run("""
assert np.array_equal(aten.relu(x), np.maximum(x, 0))
assert np.array_equal(aten.matmul(x, x.T), x @ x.T)
assert np.array_equal(aten.cat([x, x], 1), np.concatenate([x, x], 1))
assert [v.tolist() for v in aten.split(x, 1, 1)] == [x[:, i : i + 1].tolist() for i in range(3)]
assert aten.sum(x, [1], dtype="float64").dtype == np.float64
assert aten.gelu(x, approximate="tanh").shape == (2, 3) and aten.is_floating_point(x) is True
assert aten.zeros([2, 3], dtype="int16").tolist() == [[0] * 3] * 2
out = np.empty_like(x)
assert aten.neg(x, out=out) is out and np.array_equal(out, -x)
assert aten.abs_(out) is out and np.array_equal(out, abs(x))
assert aten.size(x, 1) == 3 and aten._conj(x.astype(np.complex64) * 1j)[0, 0] == 2j
assert torch.equal(aten.relu(torch.from_numpy(x)), torch.relu(torch.from_numpy(x)))
""")


@pytest.mark.skipif(not LOANS, reason="torch's C shim lends memory from 2.11 on")
def test_views_keep_their_base(run):
    run("""
import weakref
class Watched(np.ndarray): pass
base = np.zeros((2, 3), np.float32).view(Watched)
gone = weakref.ref(base)
view = aten.t(base)
base[0, 1] = 5
assert view[1, 0] == 5
del base; gc.collect()
assert gone() is not None and view[1, 0] == 5
del view; gc.collect()
assert gone() is None
""")


@pytest.mark.skipif(not LOANS, reason="torch's C shim lends memory from 2.11 on")
def test_refused_calls_keep_nothing(run):
    """What was prepared for torch before the refusal is let go of."""
    run("""
def calls(count):
    for _ in range(count):
        refused(NotImplementedError, "Generator", aten.bernoulli_, x, 0.5, generator=1)
        refused(NotImplementedError, "in the place of a tensor", aten.mul.Tensor, x, 2.0)
calls(10)
before = sys.getrefcount(x)
calls(10)
assert sys.getrefcount(x) == before
""")


def test_the_rest_says_what_is_missing(run):
    run("""
cure = "the ATen glue can, which the C++ compiler builds at first use: `anyop doctor` says what is missing"
refused(NotImplementedError, "cannot pass a Scalar (alpha)", aten.add, x, x)
refused(NotImplementedError, cure, aten.add, x, x)
refused(NotImplementedError, cure, aten.rand, [2], generator=1)
qkv = [np.ones((1, 1, 4, 8), np.float32)] * 3
refused(NotImplementedError, "of different types", aten._scaled_dot_product_flash_attention, *qkv)
refused(TypeError, "the arguments fit no overload", aten.relu, "text")
frozen = x.copy(); frozen.flags.writeable = False
refused(ValueError, "read-only", aten.relu_, frozen)
""")


@pytest.mark.skipif(not LOANS, reason="torch's C shim lends memory from 2.11 on")
def test_the_threads_state(run):
    """Gradients neither matter nor change; of the rest the shim knows nothing, so it is refused."""
    run("""
from torch._subclasses import FakeTensorMode
for enabled in (True, False):
    with torch.set_grad_enabled(enabled):
        assert not aten.mm(x, x.T, like="torch").requires_grad and torch.is_grad_enabled() == enabled
for mode in (torch.autocast("cpu", torch.bfloat16), FakeTensorMode()):
    with mode:
        refused(RuntimeError, "without the ATen glue a call cannot be kept from", aten.mm, x, x.T)
assert aten.mm(x, x.T).dtype == np.float32
""")


@pytest.mark.skipif(not LOANS, reason="torch's C shim lends memory from 2.11 on")
def test_what_is_read_is_not_what_is_written(run):
    run("""
for square in (np.arange(4.0).reshape(2, 2), torch.arange(4.0).reshape(2, 2)):
    assert aten.mm(square, square, out=square) is square
    assert square.tolist() == [[2, 3], [6, 11]]
line = np.arange(6.0)
aten.copy_(line[1:], line[:-1])
assert line.tolist() == [0, 0, 1, 2, 3, 4]
aten.cat([line[3:], line[:3]], out=line)
assert line.tolist() == [2, 3, 4, 0, 0, 1]
odd = np.zeros((6, 2), np.int64)
values = np.zeros(1)
aten.max(line, 0, True, max=values, max_values=odd[:1, 0])
assert values[0] == 4 and odd[0, 0] == 2
refused(ValueError, "write both", aten.frexp, line, mantissa=line, exponent=line.view(np.int32)[:6])
""")
