# SPDX-License-Identifier: Apache-2.0
"""Fifty steps of training a small MLP with layer_norm and gelu: equal in all frameworks to 1e-4."""

from __future__ import annotations

import anyop
import numpy as np
import pytest

STEPS, RATE, BATCH, D, H = 50, 0.1, 16, 12, 24
RNG = np.random.default_rng(11)
DATA = RNG.standard_normal((BATCH, D)).astype(np.float32)
TARGET = np.sin(DATA @ RNG.standard_normal((D, 1))).astype(np.float32)
START = {
    "w1": RNG.standard_normal((H, D)).astype(np.float32) / 4,
    "b1": np.zeros(H, np.float32),
    "scale": np.ones(H, np.float32),
    "shift": np.zeros(H, np.float32),
    "w2": RNG.standard_normal((1, H)).astype(np.float32) / 4,
    "b2": np.zeros(1, np.float32),
}


def predict(x, w1, b1, scale, shift, w2, b2):
    hidden = anyop.gelu(anyop.layer_norm(anyop.linear(x, w1, b1), scale, shift))
    return anyop.linear(hidden, w2, b2)


def by_hand() -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses and the weights after training, by NumPy and the backward operators."""
    p, losses = dict(START), []
    for _ in range(STEPS):
        inner = anyop.linear(DATA, p["w1"], p["b1"])
        normed = anyop.layer_norm(inner, p["scale"], p["shift"])
        hidden = anyop.gelu(normed)
        error = anyop.linear(hidden, p["w2"], p["b2"]) - TARGET
        losses.append(float((error**2).mean()))
        g = {}
        to_hidden, g["w2"], g["b2"] = anyop.linear_backward(
            (2 / error.size * error).astype(np.float32), hidden, p["w2"]
        )
        to_normed = anyop.gelu_backward(to_hidden, normed)
        to_inner, g["scale"], g["shift"] = anyop.layer_norm_backward(to_normed, inner, p["scale"])
        _, g["w1"], g["b1"] = anyop.linear_backward(to_inner, DATA, p["w1"], grad_x=False)
        p = {name: (value - np.float32(RATE) * g[name]) for name, value in p.items()}
    return losses, p


@pytest.fixture(scope="module")
def expected():
    losses, weights = by_hand()
    assert losses[-1] < 0.3 * losses[0], "nothing was learnt"
    return losses, weights


def test_training(caller, expected):
    if not caller.has_gradients:
        pytest.skip(f"{caller.name} has no gradients")
    x, target = caller.tensor(DATA), caller.tensor(TARGET)
    weights = [caller.tensor(value) for value in START.values()]

    def loss(*weights):
        return ((predict(x, *weights) - target) ** 2).mean()

    losses = []
    for _ in range(STEPS):
        losses.append(float(caller.array(loss(*weights))))
        gradients = caller.gradients(loss, weights)
        weights = [w - RATE * g for w, g in zip(weights, gradients)]
    np.testing.assert_allclose(losses, expected[0], rtol=1e-4, atol=1e-4)
    for value, after in zip(weights, expected[1].values()):
        np.testing.assert_allclose(caller.array(value), after, atol=1e-4)
