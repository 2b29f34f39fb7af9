# SPDX-License-Identifier: Apache-2.0
"""The one primitive of all operators: what it computes is in its parameter `site`. XLA runs it as a custom call.

jaxprs show it as anyop[site=rms_norm(eps=1e-06) ...]; its results are those wanted, then new values of what changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir

from anyop.adapter.check import Check
from anyop.adapter.operators import Operator
from anyop.jax import sharding
from anyop.jax.call_site import Site
from anyop.jax.framework import jnp_dtype

TARGET = "anyop"  # of the custom call
KEPT_SITES = 4096  # compiled functions of eager calls; each holds what JAX compiled for its shapes

Primitive = type(jax.lax.add_p)  # as jax.extend.core has it, which takes 20 ms to import

call_p = Primitive("anyop")
call_p.multiple_results = True


def bind(site: Site, flat: Sequence[Any]) -> list[Any]:
    """The flat results."""
    return call_p.bind(*same_varying(flat), site=site, devices=needs_devices())


def call(
    operator: Operator, inputs: Sequence[Any], wanted: tuple[bool, ...], use: str | None
) -> Any:
    """An operator on all its inputs, which are converted already, in a scope."""
    site = Site(operator, inputs, wanted, use)
    return site.results(bind(site, site.flatten(inputs)))


@functools.lru_cache(maxsize=KEPT_SITES)
def compiled(site: Site) -> Callable[..., tuple]:
    """The call as a function of its arrays that JAX compiles for each of their shapes."""

    def function(*flat: Any) -> tuple:
        return tuple(bind(site, flat))

    function.__name__ = function.__qualname__ = site.operator.name.replace(".", "_")
    return jax.jit(function)


# ---- under shard_map ----


def varying(value: Any) -> frozenset:
    """The axes of a mesh over which a value differs, as far as shard_map keeps account."""
    aval = jax.typeof(value)
    kind = getattr(aval, "manual_axis_type", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def same_varying(flat: Sequence[Any]) -> list[Any]:
    """The arrays, all marked as differing over the axes that any of them differs over, as for JAX's own operators."""
    found = [varying(value) for value in flat]
    union = frozenset().union(*found)
    return [
        jax.lax.pcast(value, tuple(union - own), to="varying") if union - own else value
        for value, own in zip(flat, found)
    ]


# ---- shapes ----


def results_of(site: Site, avals: Sequence[Any]) -> list[Any]:
    """Abstract values of the flat results, from those of the arrays."""
    check = Check(site.operator, site.inputs(avals))
    _ = check.device  # an operator that was given no array at all
    shapes = []
    for param, wanted in zip(site.operator.results, site.wanted):
        shape, name = check.result(param)
        if wanted:
            # XLA multiplies the other sizes of a tensor without elements, too, and aborts.
            check.refuse_overflow(param["name"], shape, name)
            shapes.append((shape, _allowed(site.operator, param["name"], name)))
    shapes += [(avals[place].shape, avals[place].dtype) for place in site.changed()]
    specs = sharding.explicit_specs(site, avals, [shape for shape, _ in shapes])
    return [
        avals[0].update(
            shape=shape,
            dtype=dtype,
            weak_type=False,
            sharding=avals[0].sharding.update(spec=spec),
        )
        for (shape, dtype), spec in zip(shapes, specs)
    ]


def _allowed(operator: Operator, result: str, name: str) -> np.dtype:
    dtype = jnp_dtype(name)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            f"{operator.name}: {result} has dtype {name}, which JAX has only with "
            'jax.config.update("jax_enable_x64", True)'
        )
    return dtype


call_p.def_abstract_eval(lambda *avals, site, devices: results_of(site, avals))


# ---- running ----


def run(site: Site, flat: Sequence[Any]) -> list[Any]:
    """The custom call, on whole arrays or on those of one device."""
    results = results_of(site, [jax.typeof(value) for value in flat])
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in results]
    custom_call = jax.ffi.ffi_call(TARGET, shapes, input_output_aliases=site.changed())
    return list(custom_call(*flat, **site.xla_attributes()))


def _partitioned(*flat: Any, site: Site, devices: Any) -> list[Any]:
    if devices is None:
        return run(site, flat)
    results = results_of(site, [jax.typeof(value) for value in flat])
    rule = sharding.Rule(site, [x.shape for x in flat], [x.shape for x in results])

    @custom_partitioning
    def function(*flat: Any) -> tuple:
        return tuple(run(site, flat))

    rule.install(function, lambda *local: run(site, local))
    return list(function(*flat))


def _apply(*flat: Any, site: Site, devices: Any) -> list[Any]:
    with jax.disable_jit(False):  # where it is disabled, this is what runs instead
        return list(compiled(site)(*flat))


call_p.def_impl(_apply)
mlir.register_lowering(call_p, mlir.lower_fun(_partitioned, multiple_results=True))


def needs_devices() -> Any:
    """A jaxpr with custom_partitioning in it, where there are several devices.

    jit looks for one in the parameters of a program; lowering is then told the devices, which the real one needs.
    """
    return _custom_partitioning_jaxpr() if jax.device_count() > 1 else None


@functools.cache
def _custom_partitioning_jaxpr() -> Any:
    @custom_partitioning
    def nothing(x: Any) -> Any:
        return x

    nothing.def_partition(lambda *_: None, sharding_rule="... -> ...")
    with jax.ensure_compile_time_eval():
        return jax.make_jaxpr(nothing)(jax.ShapeDtypeStruct((), np.float32))
