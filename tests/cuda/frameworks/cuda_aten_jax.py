# SPDX-License-Identifier: Apache-2.0
"""anyop.aten in programs of JAX's on CUDA: torch's kernels on XLA's stream and device, in XLA's order."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import anyop
import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch's tests share the device
jax = pytest.importorskip("jax", reason="jax is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
import jax.numpy as jnp  # noqa: E402

PLATFORM = "cuda"
aten = anyop.aten


def devices():
    """In a thread of its own: JAX leaves its last device current where it starts, and other tests mean device 0."""
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(jax.devices, PLATFORM).result()
    except RuntimeError:  # JAX has no such platform
        return []


if not devices():
    pytest.skip("there is no CUDA device that JAX can use", allow_module_level=True)
if not torch.cuda.is_available() and PLATFORM == "cuda":
    pytest.skip("this torch has no CUDA", allow_module_level=True)

RANDOM = np.random.default_rng(0)


def rows(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, Y = rows(33, 64), rows(33, 64)
PLACES = np.array([4, 0, 32], np.int32)
CALLS = {
    "add": (lambda x, y, i: aten.add(x, y, alpha=2), lambda: X + 2 * Y),
    "mul": (lambda x, y, i: aten.mul(x, 2.5), lambda: X * np.float32(2.5)),
    "relu": (lambda x, y, i: aten.relu(x), lambda: np.maximum(X, 0)),
    "sum": (lambda x, y, i: aten.sum(x, [0]), lambda: X.sum(0)),
    "mm": (lambda x, y, i: aten.mm(x, aten.t(y)), lambda: X @ Y.T),
    "cat": (lambda x, y, i: aten.cat([x, y], 1), lambda: np.concatenate([X, Y], 1)),
    "topk": (lambda x, y, i: aten.topk(x, 3)[0], lambda: -np.sort(-X, 1)[:, :3]),
    "argmax": (lambda x, y, i: aten.argmax(x, 1), lambda: X.argmax(1)),
    "split": (lambda x, y, i: aten.split(x, 20)[1], lambda: X[20:]),
    "where": (lambda x, y, i: aten.where(aten.gt(x, 0), x, y), lambda: np.where(X > 0, X, Y)),
    "embedding": (lambda x, y, i: aten.embedding(x, i), lambda: X[PLACES]),
    "cumsum": (lambda x, y, i: aten.cumsum(x, 0), lambda: X.cumsum(0)),
    "empty": (lambda x, y, i: aten.add(aten.slice(x, 0, 0, 0), 1), lambda: X[:0]),
}


def on(device, *arrays):
    return [jax.device_put(array, device) for array in arrays]


@pytest.mark.parametrize("function, expected", CALLS.values(), ids=CALLS)
def test_values(function, expected):
    for device in devices():
        arrays = on(device, X, Y, PLACES)
        for call in (jax.jit(function), function):
            found = call(*arrays)
            assert found.devices() == {device}
            assert np.allclose(found, expected(), rtol=1e-3, atol=1e-3)


def test_kernels_run_in_xlas_order():
    """Between XLA's own kernels, each of which takes what the one before has written."""
    (x,) = on(devices()[0], rows(2048, 2048))

    def chain(tanh, add):
        def step(_, y):
            y = tanh(y * 1.5) @ (jnp.eye(2048) * 1.1)
            return add(tanh(y), y * 0.5)

        return jax.jit(lambda x: jax.lax.fori_loop(0, 20, step, x))

    expected = chain(jnp.tanh, jnp.add)(x)
    for _ in range(3):
        assert np.allclose(chain(aten.tanh, aten.add)(x), expected, rtol=1e-2, atol=1e-2)
    y, z = x, x
    for _ in range(
        50
    ):  # dispatched one behind the other, waited for once; eager calls between them
        y = aten.add(jax.jit(lambda y: aten.sin(y) * 0.5)(y), x)
        z = jnp.sin(z) * 0.5 + x
    assert np.allclose(y, z, rtol=1e-3, atol=1e-3)


def busy(milliseconds):
    """A kernel on torch's stream that takes so long: what torch does next comes behind it."""
    torch.cuda._sleep(int(2e6) * milliseconds)


def test_a_lent_array_is_read_before_xla_uses_its_memory_again():
    """Torch's kernel runs on torch's stream, and XLA gives memory to its own as soon as nobody holds it."""
    (x,) = on(devices()[0], rows(1024, 1024))
    double = jax.jit(lambda x: x * 2)
    fill = jax.jit(lambda k: jnp.full((1024, 1024), k))
    expected = np.asarray(x) * 2 + 1
    fill(0.0).block_until_ready()
    for _ in range(5):
        lent = double(x)
        lent.block_until_ready()
        busy(20)
        found = aten.add(lent, 1)
        del lent
        others = [fill(float(k)) for k in range(8)]
        jax.block_until_ready(others)
        assert np.allclose(found, expected)


def test_a_result_stays_while_xla_reads_it():
    """Its array is let go of while XLA's program waits, and torch would use the memory for its next tensor."""
    (x,) = on(devices()[0], rows(2048, 2048))

    @jax.jit
    def late(x, y):
        z = jax.lax.fori_loop(0, 60, lambda _, z: jnp.tanh(z @ x), x)
        return z * 0 + y

    expected = np.asarray(x) + 1
    late(x, x).block_until_ready()
    for _ in range(5):
        y = aten.add(x, 1)
        found = late(x, y)
        del y
        others = [torch.full((2048, 2048), float(k), device="cuda") for k in range(8)]
        torch.cuda.synchronize()
        assert len(others) == 8 and np.allclose(found, expected)


def test_seeds():
    """An int, or one that lies on the device."""
    (half,) = on(devices()[0], np.full(1000, 0.5, np.float32))
    fixed = jax.jit(lambda x: aten.bernoulli(x, generator=7))
    program = jax.jit(lambda x, seed: aten.bernoulli(x, generator=seed))
    assert np.array_equal(fixed(half), fixed(half))
    assert np.array_equal(program(half, 7), fixed(half))
    assert not np.array_equal(program(half, 8), fixed(half))


def test_numbers_that_do_not_fit_are_refused():
    (large,) = on(devices()[0], np.array([2**30] * 3, np.int32))
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="jax_enable_x64"):
        jax.block_until_ready(jax.jit(lambda x: aten.sum(x))(large))
    with jax.enable_x64(True):
        assert jax.jit(lambda x: aten.sum(x))(large) == 3 * 2**30


def test_batches_and_views_outlive_their_arrays():
    (x,) = on(devices()[0], X)
    assert np.allclose(jax.vmap(lambda row: aten.softmax(row, -1))(x).sum(1), 1, atol=1e-5)
    view = aten.view(x, [-1])
    x.delete()
    noise = [jnp.zeros_like(view) + k for k in range(20)]
    assert np.array_equal(view, X.ravel()) and len(noise) == 20
