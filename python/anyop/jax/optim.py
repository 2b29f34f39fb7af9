# SPDX-License-Identifier: Apache-2.0
"""Optimizers for JAX in optax's form, without optax: an update of all parameters is one call of an operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import anyop

__all__ = ["AdamState", "GradientTransformation", "adamw", "apply", "lamb"]


class GradientTransformation(NamedTuple):
    """What optax's is: optax.chain and the like take it."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class AdamState(NamedTuple):
    """State of adamw and lamb: the number of steps, means as trees like the parameters', float32 masters or None."""

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
    attributes = {"beta1": b1, "beta2": b2, "eps": eps, "weight_decay": weight_decay}
    return _optimizer("adamw", "adam", learning_rate, attributes, mu_dtype, master_weights)


def lamb(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    *,
    mu_dtype: Any = None,
    master_weights: bool = False,
) -> GradientTransformation:
    """LAMB with optax.lamb's arguments and defaults; a step is one call of multi_tensor_lamb.

    All else is as adamw has it.
    """
    attributes = {"beta1": b1, "beta2": b2, "eps": eps, "weight_decay": weight_decay}
    attributes["use_nvlamb"] = True  # as optax's: where weight_decay is 0 too
    return _optimizer("lamb", "lamb", learning_rate, attributes, mu_dtype, master_weights)


def _optimizer(
    name: str, operator: str, learning_rate: Any, attributes: dict[str, float], mu_dtype: Any,
    master_weights: bool,
) -> GradientTransformation:  # fmt: skip
    if mu_dtype is None and master_weights:
        mu_dtype = jnp.float32
    static = tuple(attributes.items())

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
            raise ValueError(f"{name}: params are missing: update(gradients, state, params)")
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        return _step(gradients, state, params, jnp.asarray(rate, jnp.float32), operator, static)

    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        found, state = replace(gradients, state, params)
        return _differences(found, params), state

    update.replace = replace  # type: ignore[attr-defined]
    return GradientTransformation(init, update)


@partial(jax.jit, donate_argnums=(1,), static_argnums=(4, 5))
def _step(
    gradients: Any, state: AdamState, params: Any, rate: jax.Array, operator: str,
    attributes: tuple[tuple[str, float], ...],
) -> tuple[Any, AdamState]:  # fmt: skip
    p, tree = jax.tree.flatten(params)
    g, m, v = (tree.flatten_up_to(part) for part in (gradients, state.mu, state.nu))
    master = None if state.master is None else tree.flatten_up_to(state.master)
    count = state.count + 1
    if p:
        wide = [jnp.promote_types(one.dtype, jnp.float32) for one in p]
        updates = [[jnp.zeros(one.shape, d) for one, d in zip(p, wide)]] * (operator == "lamb")
        call: Callable[..., Any] = getattr(anyop, f"multi_tensor_{operator}")
        changed = call(
            p, g, m, v, *updates, rate, count.astype(jnp.float32), master=master, **dict(attributes)
        )  # which returns what it changes when it is traced
        p, m, v = changed[:3]
        master = None if master is None else changed[3 + len(updates)]
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
