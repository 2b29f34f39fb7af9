# SPDX-License-Identifier: Apache-2.0
"""Optimizers for JAX in optax's form, without optax: an update of all parameters is one call of an operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import anyop

__all__ = ["AdamState", "GradientTransformation", "adamw", "apply"]


class GradientTransformation(NamedTuple):
    """What optax's is: optax.chain and the like take it."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class AdamState(NamedTuple):
    """State of adamw: the number of steps, means as trees like the parameters', float32 masters or None."""

    count: jax.Array
    mu: Any
    nu: Any
    master: Any


def adamw(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    *,
    mu_dtype: Any = None,
    master_weights: bool = False,
) -> GradientTransformation:
    """AdamW with optax.adamw's arguments and defaults; a step is one call of multi_tensor_adam.

    learning_rate:   a number, an array of one element (traced too), or a function of the number of steps before.
    mu_dtype:        of both means: the parameter's, or float32 with master_weights, where it is not given.
    master_weights:  keeps float32 parameters, which are what is optimized; parameters are these, rounded.
    update(gradients, state, params) returns (updates, state), and params + updates are the new parameters; apply()
    gives these without the sum. Outside of a transformation it is one compiled call, which takes the memory of the
    state: what was given is deleted then. Gradients have the dtype of their parameter, or float32.
    Raises  ValueError without params, and where the trees differ.
    """
    if mu_dtype is None and master_weights:
        mu_dtype = jnp.float32

    def init(params: Any) -> AdamState:
        zeros = partial(jax.tree.map, lambda p: jnp.zeros_like(p, dtype=mu_dtype))
        master = None
        if (
            master_weights
        ):  # copies: a state that is given away must not take the parameters with it
            master = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        return AdamState(jnp.zeros((), jnp.int32), zeros(params), zeros(params), master)

    def replace(gradients: Any, state: AdamState, params: Any) -> tuple[Any, AdamState]:
        if params is None:
            raise ValueError("adamw: params are missing: update(gradients, state, params)")
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        rate = jnp.asarray(rate, jnp.float32)
        return _adamw_step(gradients, state, params, rate, b1, b2, eps, weight_decay)

    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        found, state = replace(gradients, state, params)
        return _differences(found, params), state

    update.replace = replace  # type: ignore[attr-defined]
    return GradientTransformation(init, update)


@partial(jax.jit, donate_argnums=(1,), static_argnums=(4, 5, 6, 7))
def _adamw_step(
    gradients: Any, state: AdamState, params: Any, rate: jax.Array, b1: float, b2: float, eps: float,
    weight_decay: float,
) -> tuple[Any, AdamState]:  # fmt: skip
    p, tree = jax.tree.flatten(params)
    g, m, v = (tree.flatten_up_to(part) for part in (gradients, state.mu, state.nu))
    master = None if state.master is None else tree.flatten_up_to(state.master)
    count = state.count + 1
    if p:
        call: Callable[..., Any] = (
            anyop.multi_tensor_adam
        )  # which returns what it changes when it is traced
        changed = call(
            p, g, m, v, rate, count.astype(jnp.float32), master,
            beta1=b1, beta2=b2, eps=eps, weight_decay=weight_decay,
        )  # fmt: skip
        p, m, v = changed[:3]
        master = None if master is None else changed[3]
    new, mu, nu = map(tree.unflatten, (p, m, v))
    return new, AdamState(count, mu, nu, None if master is None else tree.unflatten(master))


@jax.jit
def _differences(new: Any, old: Any) -> Any:
    return jax.tree.map(jnp.subtract, new, old)


def apply(
    optimizer: GradientTransformation, gradients: Any, state: Any, params: Any
) -> tuple[Any, Any]:
    """A step of one of these optimizers: (new parameters, new state)."""
    return optimizer.update.replace(gradients, state, params)  # type: ignore[attr-defined]
