# SPDX-License-Identifier: Apache-2.0
"""Junk of JAX: tracers, also of a trace that is over, deleted and donated arrays, odd dtypes, other devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import anyop.jax  # noqa: F401  registers
import jax
import jax.numpy as jnp
import junk_arrays  # noqa: F401  registers
import numpy as np
from junk_draft import NOTHING, Bridge, Unfit, junk

ENTRIES = ("jit", "eval_shape", "grad", "vmap")


class Jax(Bridge):
    """64-bit dtypes are on."""

    name = "jax"
    writes = False

    def tensor(self, array: np.ndarray) -> Any:
        try:
            return jax.device_put(array.copy())  # compiles nothing
        except Exception:
            raise Unfit from None

    def array(self, value: Any) -> np.ndarray | None:
        if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
            return super().array(value)
        try:
            return np.array(value)
        except Exception:
            return None

    def owns(self, value: Any) -> bool:
        return isinstance(value, (jax.Array, jax.ShapeDtypeStruct))

    def has_dtype(self, name: str) -> bool:
        return hasattr(jnp, name)

    def around(self) -> contextlib.AbstractContextManager:
        return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()

    def entry(self, draft: Any) -> Callable[..., Any]:
        function = draft.subject.function
        if draft.dice.random() < 0.8:
            return lambda *args, **kwargs: jax.block_until_ready(function(*args, **kwargs))
        draft.way = draft.dice.choice(ENTRIES)
        draft.note(draft.way)
        return lambda *args, **kwargs: jax.block_until_ready(
            _traced(draft.way, function, args, kwargs)
        )

    def is_its_own(self, draft: Any, error: BaseException) -> bool:
        text, name = str(error), draft.subject.name
        forms = (f": {name}: ", f": native_{name}: ")  # the second saves for a gradient
        if isinstance(error, (ValueError, NotImplementedError, RuntimeError)) and any(
            form in text for form in forms
        ):
            return True  # of the run: behind XLA's code
        if "has been deleted" in text or isinstance(error, jax.errors.UnexpectedTracerError):
            return draft.is_dead
        other = (f"{name}_backward: ", f"native_{name}: ")  # may take fewer dtypes
        if "RESOURCE_EXHAUSTED" in text or text.startswith(other):
            return True
        way = draft.way
        # What jax.grad, jax.vmap and jax.jit themselves ask of their arguments.
        own = (
            "Error interpreting argument",
            "grad requires",
            "vmap",
            "not a valid JAX type",
            "Gradient only defined",
            "Length of device assignment",
        )
        return bool(way) and any(word in text for word in own)


def _traced(way: str, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The call inside one of JAX's transformations, by its arrays; all else stays as it is."""
    placed = {at: v for at, v in enumerate(args) if isinstance(v, jax.Array)}
    named = {n: v for n, v in kwargs.items() if isinstance(v, jax.Array)}

    def call(placed: dict, named: dict) -> Any:
        return function(*[placed.get(at, v) for at, v in enumerate(args)], **{**kwargs, **named})

    if way == "jit":
        return jax.jit(call)(placed, named)
    if way == "eval_shape":
        return jax.eval_shape(call, placed, named)
    if way == "vmap":
        more = jax.tree.map(lambda v: jnp.stack([v, v]), (placed, named))
        found = jax.vmap(call)(*more)
        same = jax.tree.map(lambda v: bool((_bits(v[0]) == _bits(v[1])).all()), found)
        assert all(jax.tree.leaves(same)), "elements that are the same have other results"
        return jax.tree.map(lambda v: v[0], found)

    def total(floats: list, others: list) -> Any:
        values = iter(floats), iter(others)
        held = [next(values[not is_float(leaf)]) for leaf in leaves]
        found = call(*jax.tree.unflatten(tree, held))
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(found) if is_float(leaf)) * 1.0, found

    def is_float(leaf: Any) -> bool:
        return jnp.issubdtype(leaf.dtype, jnp.floating)

    leaves, tree = jax.tree.flatten((placed, named))
    floats = [leaf for leaf in leaves if is_float(leaf)]
    others = [leaf for leaf in leaves if not is_float(leaf)]
    grads, found = jax.grad(total, has_aux=True)(floats, others)
    for leaf, grad in zip(floats, grads):
        assert grad.shape == leaf.shape and grad.dtype == leaf.dtype, (
            "a gradient is of another kind"
        )
    return found


def _bits(value: Any) -> np.ndarray:
    return (
        np.asarray(value).view(np.uint8) if value.ndim else np.asarray(value)[None].view(np.uint8)
    )


def _deleted(draft, x):
    x.delete()
    draft.is_dead = True
    return x


def _donated(draft, x):
    jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    draft.is_dead = x.is_deleted()
    return x


def _leaked(draft, x):
    found: list = []
    jax.eval_shape(lambda v: (found.append(v), v)[1], x)
    draft.is_dead = True
    return found[0]


def _of_vmap(draft, x):
    found: list = []
    jax.vmap(lambda v: (found.append(v), v)[1])(x[None])
    draft.is_dead = True
    return found[0]


MADE = {
    "deleted": _deleted,
    "donated": _donated,
    "leaked tracer": _leaked,
    "leaked tracer of vmap": _of_vmap,
    "int4": lambda d, x: jnp.zeros(x.shape, jnp.int4),
    "key": lambda d, x: jax.random.key(0),
    "float0": lambda d, x: np.zeros(x.shape, jax.dtypes.float0),
    "struct": lambda d, x: jax.ShapeDtypeStruct(x.shape, x.dtype),
    "ref": lambda d, x: jax.new_ref(x),
    "weak": lambda d, x: jnp.asarray(0.5),
    "scalar": lambda d, x: jnp.float32(0.5),
    "int scalar": lambda d, x: jnp.int32(1),
    "other device": lambda d, x: jax.device_put(x, jax.devices()[-1]),
    "sharded": lambda d, x: jax.device_put(
        x, jax.sharding.NamedSharding(jax.make_mesh((2,), ("a",)), jax.sharding.PartitionSpec())
    ),
    "class": lambda d, x: jax.Array,
    "dtype": lambda d, x: jnp.float32,
    "device": lambda d, x: jax.devices()[0],
    "empty": lambda d, x: jnp.zeros((0, 2**40)),
}


def _one(draft, place, good, name):
    array = good if isinstance(good, np.ndarray) else np.ones((2, 3), np.float32)
    try:
        made = MADE[name](draft, jax.device_put(array.copy()))
    except Exception:
        raise Unfit from None
    return draft.means(made, NOTHING) if draft.is_dead else made


for _label in MADE:
    junk("Tensor", "int", "float", "bool", "ScalarType", label=f"JAX's: {_label}")(
        lambda draft, place, good, name=_label: _one(draft, place, good, name)
    )

BRIDGE = Jax
