# SPDX-License-Identifier: Apache-2.0
"""jax.vmap: the batched dimension becomes one more leading size where the schema has a group of independent ones.

Elsewhere the operator runs once for each element, in a loop that XLA compiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from anyop.adapter.groups import fold, independent
from anyop.jax import primitive
from anyop.jax.call_site import Site


def _rule(flat: Sequence[Any], dims: Sequence[Any], *, site: Site, devices: Any) -> tuple:
    (size, *_) = (x.shape[dim] for x, dim in zip(flat, dims) if dim is not None)
    folded = _folded(site, flat, dims, size)
    found = primitive.bind(site, folded) if folded else _sequential(site, flat, dims)
    return found, [0] * len(found)


batching.primitive_batchers[primitive.call_p] = _rule


# ---- one more leading size ----


def _folded(site: Site, flat: Sequence[Any], dims: Sequence[Any], size: Any) -> list[Any] | None:
    """The arrays with the batch in front; None where one call cannot compute all elements."""
    plan = fold(
        [site.operator.inputs[at] for at in site.owners()],
        independent(site.operator, site.wanted),
        [x.ndim for x in flat],
        [dim is not None for dim in dims],
    )
    return plan and [
        x if rank is None else _padded(_in_front(x, dim, size), rank)
        for x, dim, rank in zip(flat, dims, plan)
    ]


def _in_front(x: Any, dim: int | None, size: Any) -> Any:
    return jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)


def _padded(x: Any, rank: int) -> Any:
    """Sizes 1 behind the batch, as far as broadcasting needs them."""
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


# ---- one after the other ----


def _sequential(site: Site, flat: Sequence[Any], dims: Sequence[Any]) -> Sequence[Any]:
    batched = [jnp.moveaxis(x, dim, 0) for x, dim in zip(flat, dims) if dim is not None]

    def element(own: Sequence[Any]) -> list[Any]:
        rest = iter(own)
        return primitive.bind(
            site, [x if dim is None else next(rest) for x, dim in zip(flat, dims)]
        )

    one = jax.eval_shape(element, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in batched])
    for result in one:  # XLA would abort
        shape = (batched[0].shape[0], *result.shape)
        known = [size for size in shape if isinstance(size, int) and size]  # others are symbols
        if math.prod(known) * result.dtype.itemsize >= 2**63:
            raise ValueError(
                f"{site.operator.name}: a result of vmap would have shape {shape}: its size in "
                "bytes overflows 64 bits"
            )
    return jax.lax.map(element, batched)
