# SPDX-License-Identifier: Apache-2.0
"""Arrays on eight devices of a CPU: what is sharded stays where it is, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="jax is not installed")
pytestmark = pytest.mark.drawn(2, group="shards")

START = """
import re, jax, jax.numpy as jnp, numpy as np, anyop, anyop.jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
assert jax.device_count() == 8
random = np.random.default_rng(0)
x0 = random.standard_normal((16, 4, 64)).astype(np.float32)
w0 = random.standard_normal(64).astype(np.float32)

def plain(x, w):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w

def loss(f):
    return lambda *args: (f(*args) ** 2).sum()

def compiled(f, *args):
    program = jax.jit(f).lower(*args).compile()
    text = program.as_text()
    assert 'custom_call_target="anyop"' in text and "callback" not in text
    moved = {n: len(re.findall(n + r"[-\\w]*\\(", text)) for n in ("all-gather", "all-to-all", "collective-permute")}
    return program(*args), moved, len(re.findall(r"all-reduce[-\\w]*\\(", text))

STILL = {"all-gather": 0, "all-to-all": 0, "collective-permute": 0}

def same(a, b, limit=1e-4):
    b = np.asarray(b)
    assert a.shape == b.shape and np.abs(np.asarray(a) - b).max() <= limit * (1 + np.abs(b).max())
"""


def run(program):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    found = subprocess.run(
        [sys.executable, "-c", START + program + "\nprint('done')"],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-4000:]
    assert found.stdout.endswith("done\n")


def test_jit_gathers_nothing():
    """Batches sharded in every way, meshes with automatic and explicit axes, and the gradients."""
    run("""
expected = jax.grad(loss(plain), (0, 1))(x0, w0)
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind))
    for spec in (P("a"), P(("a", "b")), P("a", "b"), P(None, "b")):
        x = jax.device_put(x0, NamedSharding(mesh, spec))
        w = jax.device_put(w0, NamedSharding(mesh, P()))
        with jax.set_mesh(mesh):
            y, moved, sums = compiled(anyop.rms_norm, x, w)
            assert moved == STILL and sums == 0, (kind, spec, moved)
            assert y.sharding.is_equivalent_to(x.sharding, 3)
            same(y, plain(x0, w0))
            if spec != P("a", "b"):
                continue
            grads, moved, sums = compiled(jax.grad(loss(anyop.rms_norm), (0, 1)), x, w)
            assert moved == STILL and sums == 1, "the gradient of the weight is summed once"
            assert grads[0].sharding.is_equivalent_to(x.sharding, 3)
            for a, b in zip(grads, expected):
                same(a, b)
    with jax.set_mesh(mesh):
        x = jax.device_put(x0, NamedSharding(mesh, P("a", None, "b")))
        if kind is AxisType.Auto:
            y, moved, _ = compiled(anyop.rms_norm, x, w)
            assert moved["all-gather"] == 1, "rows are brought together"
            same(y, plain(x0, w0))
        else:
            try:
                jax.jit(anyop.rms_norm)(x, w)
                raise AssertionError("no error")
            except ValueError as error:
                assert "rms_norm: dimension 2 of x is sharded over 'b'" in str(error), error
""")


def test_a_model_trains_on_its_shards():
    """A block with broadcasting and products; the sums of gradients are all that is exchanged."""
    run("""
mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
weights = [random.standard_normal(s).astype(np.float32) / 8 for s in ((64,), (32, 64), (32,), (96, 16))]
table, ids = weights[3], random.integers(0, 96, (16, 4))

def ours(x, norm, linear, bias, table, ids):
    y = anyop.add(anyop.gelu(anyop.linear(anyop.rms_norm(x, norm), linear, bias)), bias)
    return y.sum() + (anyop.embedding(ids, table) ** 2).sum()

def theirs(x, norm, linear, bias, table, ids):
    return (jax.nn.gelu(plain(x, norm) @ linear.T + bias, approximate=False) + bias).sum() + (table[ids] ** 2).sum()

args = [jax.device_put(x0, NamedSharding(mesh, P("a")))]
args += [jax.device_put(w, NamedSharding(mesh, P())) for w in weights]
args += [jax.device_put(ids.astype(np.int32), NamedSharding(mesh, P("a")))]
step = lambda f: jax.value_and_grad(f, (0, 1, 2, 3, 4))
(value, grads), moved, sums = compiled(step(ours), *args)
assert moved == STILL and sums >= 1, (moved, sums)
expected, others = jax.jit(step(theirs))(x0, *weights, ids)
same(value, expected)
for a, b in zip(grads, others):
    same(a, b)

# A size that the devices do not share evenly is brought together, so that no padding is summed.
uneven = lambda x, w: anyop.rms_norm(x[:13], w)
g, _, _ = compiled(jax.grad(loss(uneven), (0, 1)), args[0], args[1])
h = jax.grad(loss(lambda x, w: plain(x[:13], w)), (0, 1))(x0, weights[0])
for a, b in zip(g, h):
    same(a, b)

# Operators whose sizes are not independent, as far as their schemas say, are right all the same.
y, _, _ = compiled(anyop.softmax, args[0])
same(y, jax.nn.softmax(x0, -1))
scaled = jax.jit(jax.vmap(anyop.rms_norm, (0, None)))(args[0], args[1])
same(scaled, plain(x0, weights[0]))
""")


def test_independent_sizes():
    """Batches of attention and of sentences, columns of a linear layer: as `independent` says in the schemas."""
    run("""
heads = lambda *shape: random.standard_normal(shape).astype(np.float32)
q0, k0, v0, some0 = heads(16, 4, 6, 8), heads(16, 2, 5, 8), heads(16, 2, 5, 8), heads(6, 5) > -1
tokens0, linear0, bias0 = heads(16, 7, 64) > -1, heads(32, 64), heads(32)
expected = np.asarray(anyop.attention(q0, k0, v0, some0))
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((8,), ("a",), axis_types=(kind,))
    put = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, P(*spec)))
    with jax.set_mesh(mesh):
        q, k, v, some = put(q0, "a"), put(k0, "a"), put(v0, "a"), put(some0)
        y, moved, _ = compiled(anyop.attention, q, k, v, some)
        assert moved == STILL and y.sharding.is_equivalent_to(q.sharding, 4), moved
        same(y, expected)
        every = put(np.broadcast_to(some0, (16, 4, 6, 5)), "a")
        y, moved, _ = compiled(anyop.attention, q, k, v, every)
        assert moved == STILL
        same(y, expected)
        grads, moved, _ = compiled(jax.grad(loss(anyop.attention), (0, 1, 2)), q, k, v)
        assert moved == STILL, moved
        for a, b in zip(grads, jax.grad(loss(anyop.attention), (0, 1, 2))(*map(jnp.array, (q0, k0, v0)))):
            same(a, b)
        x, mask = put(tokens0.astype(np.float32), "a"), put(tokens0[..., 0], "a")
        y, moved, _ = compiled(anyop.masked_mean, x, mask)
        assert moved == STILL
        same(y, anyop.masked_mean(tokens0.astype(np.float32), tokens0[..., 0].copy()))
        x, weight, bias = put(x0), put(linear0, "a"), put(bias0, "a")
        y, moved, _ = compiled(anyop.linear, x, weight, bias)
        assert moved == STILL and y.sharding.spec[-1] == "a", (moved, y.sharding)
        same(y, x0 @ linear0.T + bias0)
""")


def test_shard_map():
    """With and without the account of what varies, whole and over one axis of two; with gradients."""
    run("""
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
x = jax.device_put(x0, NamedSharding(mesh, P("a")))
w = jax.device_put(w0, NamedSharding(mesh, P()))
expected = jax.grad(loss(plain), (0, 1))(x0, w0)
for check in (True, False):
    f = jax.shard_map(anyop.rms_norm, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"), check_vma=check)
    y, moved, _ = compiled(f, x, w)
    assert moved == STILL
    same(y, plain(x0, w0))
    grads, moved, _ = compiled(jax.grad(loss(f), (0, 1)), x, w)
    assert moved == STILL
    for a, b in zip(grads, expected):
        same(a, b)
    _, tangent = jax.jit(lambda x, w: jax.jvp(f, (x, w), (x, w)))(x, w)
    same(tangent, jax.jvp(plain, (x0, w0), (x0, w0))[1])
specs = dict(in_specs=(P("a"), P()), out_specs=P("a"))
partly = jax.shard_map(anyop.rms_norm, mesh=mesh, axis_names={"a"}, **specs)
y, moved, _ = compiled(partly, x, w)
same(y, plain(x0, w0))
summed = lambda x, w: jax.lax.psum(anyop.rms_norm(x, w), "a")
total = jax.shard_map(summed, mesh=mesh, in_specs=(P("a"), P()), out_specs=P())
same(jax.jit(total)(x, w), np.asarray(plain(x0, w0)).reshape(4, 4, 4, 64).sum(0))
""")


def test_eager_calls_and_devices():
    """Results stay where arrays are; arrays of different devices are an error in the core's words."""
    run("""
mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
x = jax.device_put(x0, NamedSharding(mesh, P("a")))
w = jax.device_put(w0, NamedSharding(mesh, P()))
y = anyop.rms_norm(x, w)
assert y.sharding.is_equivalent_to(x.sharding, 3)
same(y, plain(x0, w0))
third = jax.devices()[3]
assert anyop.relu(jax.device_put(x0, third)).devices() == {third}
for first in (x, jax.device_put(x0, jax.devices()[2])):
    try:
        anyop.rms_norm(first, jax.device_put(w0, third))
        raise AssertionError("no error")
    except ValueError as error:
        assert "rms_norm: weight is on device" in str(error) and "as the tensors before it" in str(error), error
""")
