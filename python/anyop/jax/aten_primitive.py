# SPDX-License-Identifier: Apache-2.0
"""The primitive of calls of ATen: a custom call of XLA's with the text of the call. Whole arrays, no derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from anyop.jax.primitive import KEPT_SITES, TARGET, Primitive, same_varying


@dataclass(frozen=True)
class Site:
    """One call without its arrays; equal sites are equal calls."""

    name: str
    text: str
    results: tuple[tuple[tuple[int, ...], str], ...]  # shapes and dtypes


aten_p = Primitive("anyop_aten")
aten_p.multiple_results = True


def bind(site: Site, arrays: Sequence[Any]) -> list[Any]:
    """The flat results."""
    return aten_p.bind(*same_varying(arrays), site=site)


def _abstract(*avals: Any, site: Site) -> list[Any]:
    for aval in avals:
        if any(entry is not None for entry in aval.sharding.spec):
            raise ValueError(
                f"{site.name}: an array is sharded as {aval.sharding.spec}, and the operator needs it whole; "
                "use jax.sharding.reshard or shard_map"
            )
    return [
        avals[0].update(
            shape=shape,
            dtype=jnp.dtype(dtype),
            weak_type=False,
            sharding=avals[0].sharding.update(
                spec=jax.sharding.PartitionSpec(*(None,) * len(shape))
            ),
        )
        for shape, dtype in site.results
    ]


def _run(*arrays: Any, site: Site) -> list[Any]:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in site.results]
    return list(jax.ffi.ffi_call(TARGET, shapes)(*arrays, _aten=site.text))


@functools.lru_cache(maxsize=KEPT_SITES)
def _compiled(site: Site) -> Callable[..., list[Any]]:
    return jax.jit(lambda *arrays: bind(site, arrays))


def _apply(*arrays: Any, site: Site) -> list[Any]:
    with jax.disable_jit(False):  # where it is disabled, this is what runs instead
        return _compiled(site)(*arrays)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site) -> tuple[Any, Any]:
    found = bind(site, primals)
    moved = any(type(t) is not ad.Zero and t.dtype != jax.dtypes.float0 for t in tangents)
    if moved and any(jnp.issubdtype(x.dtype, jnp.inexact) for x in found):
        raise NotImplementedError(
            f"{site.name}: has no derivative in JAX; use anyop's own operators, jax.custom_vjp around it, or "
            "jax.lax.stop_gradient on its arrays"
        )
    return found, [ad.Zero(jax.typeof(value).to_tangent_aval()) for value in found]


def _batched(arrays: Sequence[Any], dims: Sequence[Any], *, site: Site) -> tuple[Any, Any]:
    """One element after the other, in a loop that XLA compiles."""
    moved = [jnp.moveaxis(x, dim, 0) for x, dim in zip(arrays, dims) if dim is not None]

    def element(own: Sequence[Any]) -> list[Any]:
        rest = iter(own)
        return bind(site, [x if dim is None else next(rest) for x, dim in zip(arrays, dims)])

    found = jax.lax.map(element, moved)
    return found, [0] * len(found)


aten_p.def_impl(_apply)
aten_p.def_abstract_eval(_abstract)
mlir.register_lowering(aten_p, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[aten_p] = _jvp
batching.primitive_batchers[aten_p] = _batched
