# SPDX-License-Identifier: Apache-2.0
"""anyop.jax.optim beside the same formulas in jnp, and beside optax where it is installed."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

from anyop.jax import optim  # noqa: E402

B1, B2, EPS, DECAY = 0.9, 0.999, 1e-8, 1e-2


def parameters(dtype=jnp.float32) -> dict:
    keys = jax.random.split(jax.random.key(0), 3)
    draw = lambda key, *shape: jax.random.normal(key, shape, jnp.float32).astype(dtype)  # noqa: E731
    return {"layer": [draw(keys[0], 5, 3), draw(keys[1], 3)], "scale": draw(keys[2])}


def gradients(step: int, dtype=jnp.float32) -> dict:
    like = parameters()
    return jax.tree.map(lambda p: jnp.sin(p * (step + 1)).astype(dtype), like)


def reference(p, g, m, v, lr, step, is_lamb=False):
    """One step in float64."""
    m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
    change = m / (1 - B1**step) / (np.sqrt(v / (1 - B2**step)) + EPS) + DECAY * p
    if is_lamb:
        change *= np.sqrt(np.sum(p * p) / np.sum(change * change))
    return p - lr * change, m, v


def follow(steps: int, lr, dtype=jnp.float32, is_lamb=False) -> list[np.ndarray]:
    leaves = [np.asarray(p, np.float64) for p in jax.tree.leaves(parameters(dtype))]
    states = [(p, 0 * p, 0 * p) for p in leaves]
    for step in range(steps):
        found = [np.asarray(g, np.float64) for g in jax.tree.leaves(gradients(step, dtype))]
        states = [
            reference(p, g, m, v, lr(step), step + 1, is_lamb)
            for (p, m, v), g in zip(states, found)
        ]
    return [p for p, _, _ in states]


def close(tree, expected, rtol: float) -> None:
    for found, wanted in zip(jax.tree.leaves(tree), expected, strict=True):
        np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", [optim.adamw, optim.lamb])
@pytest.mark.parametrize("lr", [1e-2, lambda count: 1e-2 / (1 + count)], ids=["number", "schedule"])
def test_steps_are_the_formula(lr, kind):
    optimizer, params = kind(lr, B1, B2, EPS, DECAY), parameters()
    state = optimizer.init(params)
    for step in range(7):
        updates, state = optimizer.update(gradients(step), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    assert int(state.count) == 7
    rate = lr if callable(lr) else lambda _: lr
    close(params, follow(7, rate, is_lamb=kind is optim.lamb), 2e-5)  # [tolerance] of the operators


@pytest.mark.parametrize("kind", [optim.adamw, optim.lamb])
def test_masters_keep_what_sixteen_bits_round_away(kind):
    optimizer = kind(1e-4, B1, B2, EPS, DECAY, master_weights=True)
    params = parameters(jnp.bfloat16)
    state = optimizer.init(params)
    for step in range(5):
        params, state = optim.apply(optimizer, gradients(step, jnp.bfloat16), state, params)
    expected = follow(5, lambda _: 1e-4, jnp.bfloat16, kind is optim.lamb)
    close(state.master, expected, 2e-5)
    for p, master in zip(jax.tree.leaves(params), jax.tree.leaves(state.master)):
        assert p.dtype == jnp.bfloat16 and bool((p == master.astype(p.dtype)).all())


def test_one_program_serves_all_rates_and_steps():
    traced = []

    @jax.jit
    def train(rate, state, params):
        traced.append(rate)
        return optim.apply(optim.adamw(rate, B1, B2, EPS, DECAY), gradients(0), state, params)

    params = parameters()
    state = optim.adamw(0.0).init(params)
    for rate in (1e-2, 2e-2, 3e-2):
        params, state = train(rate, state, params)
    assert len(traced) == 1 and int(state.count) == 3


def test_a_step_takes_the_memory_of_the_state():
    optimizer, params = optim.adamw(1e-2), parameters()
    state = optimizer.init(params)
    optim.apply(optimizer, gradients(0), state, params)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.mu))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_bad_input_is_refused():
    optimizer, params = optim.adamw(1e-2), parameters()
    with pytest.raises(ValueError, match="params are missing"):
        optimizer.update(gradients(0), optimizer.init(params))
    with pytest.raises(ValueError):
        optimizer.update({"scale": params["scale"]}, optimizer.init(params), params)
    assert optim.apply(optimizer, {}, optimizer.init({}), {})[0] == {}


def test_a_small_model_learns_as_with_jnp():
    """50 steps of a byte model with anyop's loss and optimizer; every loss as with jnp's to 1e-4."""
    text = np.frombuffer(__doc__.encode() * 4, np.uint8).astype(np.int32)
    x, y = jnp.asarray(text[:-1]), jnp.asarray(text[1:])
    keys = jax.random.split(jax.random.key(1), 2)
    start = {
        "embedding": jax.random.normal(keys[0], (128, 16)),
        "out": jax.random.normal(keys[1], (16, 128)) * 0.1,
    }

    def logits(params):
        return jnp.tanh(params["embedding"][x]) @ params["out"]

    def loss(params):
        return anyop.cross_entropy(logits(params), y)[0].mean()

    def plain_loss(params):
        logs = jax.nn.log_softmax(logits(params))
        return -jnp.take_along_axis(logs, y[:, None], 1).mean()

    def plain_step(p, g, m, v, step):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
        change = m / (1 - B1**step) / (jnp.sqrt(v / (1 - B2**step)) + EPS)
        return p - 1e-2 * (change + DECAY * p), m, v

    optimizer = optim.adamw(1e-2, B1, B2, EPS, DECAY)
    params, state, losses = start, optimizer.init(start), []
    both = jax.jit(jax.value_and_grad(loss))
    for _ in range(50):
        value, grads = both(params)
        params, state = optim.apply(optimizer, grads, state, params)
        losses.append(float(value))
    params, plain = start, []
    m = v = jax.tree.map(jnp.zeros_like, start)
    both = jax.jit(jax.value_and_grad(plain_loss))
    for step in range(1, 51):
        value, grads = both(params)
        moved = {
            name: plain_step(params[name], grads[name], m[name], v[name], step) for name in params
        }
        params, m, v = ({name: moved[name][k] for name in moved} for k in range(3))
        plain.append(float(value))
    np.testing.assert_allclose(losses, plain, rtol=1e-4)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_optax_has_the_same_steps(name):
    optax = pytest.importorskip("optax", reason="optax is not installed")
    kinds = [getattr(module, name) for module in (optim, optax)]
    mine, its = (kind(1e-2, B1, B2, EPS, weight_decay=DECAY) for kind in kinds)
    results = []
    for optimizer in (optax.chain(optax.clip(0.5), mine), optax.chain(optax.clip(0.5), its)):
        params = parameters()
        state = optimizer.init(params)
        for step in range(5):
            updates, state = optimizer.update(gradients(step), state, params)
            params = optax.apply_updates(params, updates)
        results.append(params)
    close(results[0], [np.asarray(p, np.float64) for p in jax.tree.leaves(results[1])], 2e-5)
