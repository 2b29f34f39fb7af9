# SPDX-License-Identifier: Apache-2.0
"""Operators with CUDA kernels on JAX's arrays: XLA's stream and device, gradients, errors."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import anyop
import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests share the device
jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402


def devices():
    """In a thread of its own: JAX leaves its last device current where it starts, and other tests mean device 0."""
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(jax.devices, "cuda").result()
    except RuntimeError:  # JAX has no such platform
        return []


if not devices():
    pytest.skip("there is no CUDA device that JAX can use", allow_module_level=True)
import anyop.jax  # noqa: E402

RANDOM = np.random.default_rng(0)


def rows(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def on(device, *arrays):
    return [jax.device_put(array, device) for array in arrays]


def plain(x, w):
    wide = x.astype(jnp.float32)
    return (
        wide / jnp.sqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * w.astype(jnp.float32)
    ).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(4, 64), (3, 5, 1000), (1, 1), (0, 8), (257, 4096)])
def test_values(shape, dtype):
    x, w = (a.astype(dtype) for a in on(devices()[0], rows(*shape), rows(shape[-1])))
    limit = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for function in (anyop.rms_norm, jax.jit(anyop.rms_norm)):
        y = function(x, w)
        assert y.devices() == {devices()[0]} and y.dtype == dtype and y.shape == shape
        assert np.allclose(
            *(np.asarray(v, np.float32) for v in (y, plain(x, w))), rtol=limit, atol=limit
        )
    total = jax.jit(anyop.add)(x, w)
    assert np.allclose(*(np.asarray(v, np.float32) for v in (total, x + w)), rtol=limit, atol=limit)


def test_gradients():
    x, w = on(devices()[0], rows(33, 256), rows(256))

    def loss(f):
        return lambda x, w: (f(x, w) ** 2).sum()

    for transform in (
        lambda f: jax.jit(jax.grad(loss(f), (0, 1))),
        lambda f: jax.grad(loss(f), (0, 1)),
    ):
        for a, b in zip(transform(anyop.rms_norm)(x, w), transform(plain)(x, w), strict=True):
            assert np.allclose(a, b, rtol=1e-3, atol=1e-3)
    batch = jnp.stack([x, x * 2])
    found = jax.vmap(anyop.rms_norm, (0, None))(batch, w)
    assert np.allclose(found, plain(batch, w), rtol=1e-4, atol=1e-4)


def test_kernels_run_in_xlas_order():
    """On XLA's stream, between XLA's own kernels: each takes what the one before has written."""
    x, w = on(devices()[0], rows(2048, 2048), np.ones(2048, np.float32))

    def chain(f):
        def step(_, y):
            y = jnp.tanh(f(y * 1.5, w)) @ (jnp.eye(2048) * 1.1)
            return f(y + 0.25, w)

        return jax.jit(lambda x: jax.lax.fori_loop(0, 20, step, x))

    expected = chain(plain)(x)
    for _ in range(3):
        assert np.allclose(chain(anyop.rms_norm)(x), expected, rtol=1e-2, atol=1e-2)
    y = x
    for _ in range(50):  # dispatched one behind the other, waited for once
        y = anyop.add(anyop.rms_norm(y, w), y)
    z = x
    for _ in range(50):
        z = plain(z, w) + z
    assert np.allclose(y, z, rtol=1e-3, atol=1e-3)


def test_compiled_programs_hold_the_operators():
    x, w = on(devices()[0], rows(8, 64), rows(64))
    text = (
        jax.jit(jax.grad(lambda x, w: anyop.rms_norm(x, w).sum())).lower(x, w).compile().as_text()
    )
    assert 'custom_call_target="anyop"' in text and "rms_norm_backward" in text
    assert "callback" not in text


def test_every_device():
    """The ordinal is XLA's: an array is computed where it lies."""
    if len(devices()) < 2:
        pytest.skip("there is one CUDA device")
    for device in devices():
        x, w = on(device, rows(16, 128), rows(128))
        y = jax.jit(anyop.rms_norm)(x, w)
        assert y.devices() == {device}
        assert np.allclose(y, plain(x, w), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="rms_norm: weight is on device"):
        anyop.rms_norm(*on(devices()[0], rows(4, 8)), *on(devices()[1], rows(8)))


def test_the_cpu_beside_it():
    cpu = jax.devices("cpu")[0]
    x, w = on(cpu, rows(4, 8), rows(8))
    y = anyop.rms_norm(x, w)
    assert y.devices() == {cpu} and np.allclose(y, plain(x, w), atol=1e-5)
    with pytest.raises(ValueError, match="rms_norm: weight is on device"):
        anyop.rms_norm(x, *on(devices()[0], rows(8)))


def test_errors():
    """An operator without a kernel of its own here runs another backend; a shape is refused."""
    (x,) = on(devices()[0], rows(4, 8))
    assert np.array_equal(jax.jit(anyop.relu)(x - 0.5), np.maximum(np.asarray(x) - 0.5, 0))
    with pytest.raises(
        ValueError, match=r"rms_norm: weight has shape \(4\), expected \(D\) with D=8"
    ):
        anyop.rms_norm(x, x[:, 0])
    assert np.allclose(anyop.rms_norm(x, jnp.ones(8)), plain(x, jnp.ones(8)), atol=1e-5)
