# SPDX-License-Identifier: Apache-2.0
"""jax.export: programs with anyop's operators are written, and read in another process; sizes may stay open."""

from __future__ import annotations

import subprocess
import sys

import anyop
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import anyop.jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

CHECKS = [export.DisabledSafetyCheck.custom_call(anyop.jax.TARGET)]
RANDOM = np.random.default_rng(1)
W = RANDOM.standard_normal(64).astype(np.float32)
A = RANDOM.standard_normal((32, 64)).astype(np.float32)

PROGRAM = """
import sys, jax.export, numpy as np
import anyop.jax
program = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
arguments = np.load(sys.argv[2])
np.savez(sys.argv[3], *program.call(*arguments.values()))
"""


def model(x, w, a):
    return anyop.linear(anyop.gelu(anyop.add(anyop.rms_norm(x, w), w), approximate="tanh"), a)


def step(x, w, a):
    value, grads = jax.value_and_grad(lambda *v: (model(*v) ** 2).sum(), (1, 2))(x, w, a)
    return value, *grads


def abstract(shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def exported(function, batch):
    shapes = (abstract(batch), abstract(W.shape), abstract(A.shape))
    return export.export(jax.jit(function), disabled_checks=CHECKS)(*shapes)


def test_another_process_runs_it(tmp_path):
    """With gradients, for a batch size that was open."""
    pytest.importorskip(
        "flatbuffers", reason="jax.export serialises by flatbuffers, which is not installed"
    )
    program = exported(step, (*export.symbolic_shape("b, t"), 64))
    (tmp_path / "program").write_bytes(program.serialize())
    x = RANDOM.standard_normal((3, 5, 64)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x, W, A)
    names = ["program", "in.npz", "out.npz"]
    command = [sys.executable, "-c", PROGRAM, *(str(tmp_path / name) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out.npz")
    for a, b in zip(found.values(), step(*map(jnp.asarray, (x, W, A))), strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_open_sizes_stay_open():
    program = exported(model, (*export.symbolic_shape("b"), 64))
    assert str(program.out_avals[0].shape) == "(b, 32)"
    for batch in (1, 2, 9):
        x = RANDOM.standard_normal((batch, 64)).astype(np.float32)
        found = program.call(x, W, A)
        assert np.allclose(found, model(*map(jnp.asarray, (x, W, A))), rtol=1e-5, atol=1e-5)


def test_shapes_that_are_computed():
    """Halved, joined and compared sizes."""
    b, d = export.symbolic_shape("b, d")
    shape = jax.eval_shape(anyop.silu_and_mul, abstract((b, 2 * d))).shape
    assert shape == (b, d)
    assert jax.eval_shape(anyop.matmul, abstract((b, 3, d)), abstract((d, 4))).shape == (b, 3, 4)
    assert jax.eval_shape(anyop.add, abstract((b, 1, d)), abstract((3, d))).shape == (b, 3, d)
    with pytest.raises(
        ValueError, match=r"rms_norm: weight has shape \(b\), expected \(D\) with D=d"
    ):
        jax.eval_shape(anyop.rms_norm, abstract((b, d)), abstract((b,)))
    with pytest.raises(ValueError, match="silu_and_mul: x has shape"):
        jax.eval_shape(anyop.silu_and_mul, abstract((b, d)))


def test_what_is_open_is_decided_by_the_call():
    """k <= D, where D is open."""
    (d,) = export.symbolic_shape("d")
    with jax.enable_x64(True):
        program = export.export(jax.jit(lambda x: anyop.topk(x, 3)), disabled_checks=CHECKS)(
            abstract((d,))
        )
        assert program.call(np.array([1, 5, 3, 2], np.float32))[1].tolist() == [1, 2, 3]
        with pytest.raises(Exception, match="topk: expected k <= D"):
            jax.block_until_ready(program.call(np.array([1, 5], np.float32)))


def test_vmap_of_open_sizes():
    (b,) = export.symbolic_shape("b")
    function = jax.jit(
        jax.vmap(anyop.rms_norm, (0, 0))
    )  # of several weights: a loop of open length
    program = export.export(function, disabled_checks=CHECKS)(
        abstract((b, 4, 64)), abstract((b, 64))
    )
    x = RANDOM.standard_normal((3, 4, 64)).astype(np.float32)
    found = program.call(x, np.stack([W, W + 1, W + 2]))
    assert np.allclose(found[2], anyop.rms_norm(x[2], W + 2), rtol=1e-5, atol=1e-5)
