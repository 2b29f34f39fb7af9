# SPDX-License-Identifier: Apache-2.0
"""Derivatives: a linear primitive stands for what an operator does to tangents.

Transposed (grad, vjp) it is the operator of [backward]; evaluated (jvp) it is the formulas of [tangent]. Either may be
missing: the error comes when it is needed. Only gradients that are needed are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from anyop._scope import resumed
from anyop.adapter.dtypes import is_floating
from anyop.adapter.gradient import Gradient, name_called
from anyop.adapter.operators import Operator
from anyop.adapter.tangent import Tangent
from anyop.jax import groups, primitive
from anyop.jax.call_site import Site

tangent_p = primitive.Primitive("anyop_tangent")
tangent_p.multiple_results = True


class Derivative:
    """How one operator is differentiated, both ways."""

    def __init__(self, operator: Operator, gradient: Gradient | str) -> None:
        self.operator = operator
        self.forward = gradient.forward if isinstance(gradient, Gradient) else operator
        if operator.mutated and isinstance(gradient, Gradient):
            gradient = "changes an argument, and then has no gradient in JAX"
        self.gradient = gradient if isinstance(gradient, Gradient) else None
        self.why_not = gradient if isinstance(gradient, str) else ""
        formulas = None if operator.mutated else operator.metadata["tangent"]
        self.tangent = Tangent({**operator.metadata, "tangent": formulas})
        names = self.tangent.names if self.tangent.inputs else frozenset()
        saved = self.gradient.saved_inputs if self.gradient else ()
        results = self.gradient.saved_results if self.gradient else ()
        self.inputs = {
            *saved,
            *(at for at in operator.tensors if operator.names[at] in names),
        }  # whose values either way needs
        own = [param["name"] for param in operator.results]
        self.results = {*results, *(at for at, name in enumerate(own) if name in names)}

    def check(self, moved: set[int]) -> None:
        """NotImplementedError for inputs that have no derivative at all."""
        operator = self.operator
        known = set(self.tangent.inputs)
        if self.gradient:
            known.update(operator.names[at] for at in self.gradient.inputs)
        for at in sorted(moved):
            name = operator.names[at]
            if name in known:
                continue
            self.refuse_second()
            if not known:
                raise NotImplementedError(
                    f"{operator.name}: {self.why_not}, and {name} requires one; use "
                    f"jax.lax.stop_gradient({name})"
                )
            raise NotImplementedError(
                f"{operator.name}: {name} requires a gradient, which the operator does not compute; "
                f"use jax.lax.stop_gradient({name})"
            )

    def refuse_second(self) -> None:
        """NotImplementedError for what computes gradients itself."""
        if self.operator.name in groups.forwards:
            raise NotImplementedError(
                f"{self.operator.name}: has no gradient, so its operator can be differentiated once, not twice"
            )


derivatives: dict[str, Derivative] = {}  # by the operator's name


@dataclass(frozen=True)
class Linear:
    """What tangent_p is told: its arrays are values of inputs, values of results, then tangents."""

    name: str  # of the operator; the site may be of the forward that ran instead
    site: Site
    inputs: tuple[int, ...]  # flat places
    results: tuple[int, ...]
    tangents: tuple[int, ...]  # flat places of the inputs whose tangents these are
    kept: tuple[Any, ...]  # what else the gradient's operator takes: attributes, sizes
    floating: tuple[int, ...]  # flat places of the results that have tangents
    avals: tuple[Any, ...]  # of these tangents
    lacking: tuple[
        tuple[int, Any], ...
    ]  # numbers and avals of results that are not made, whose gradients are zeros

    @property
    def first_tangent(self) -> int:
        """Place among the arrays."""
        return len(self.inputs) + len(self.results)

    def values(self, arrays: Sequence[Any]) -> list[Any]:
        """All inputs of the operator, None for those whose values were not kept."""
        flat: list[Any] = [None] * len(self.site.owners())
        for place, array in zip(self.inputs, arrays):
            flat[place] = array
        return self.site.inputs(flat)

    def saved_results(self, arrays: Sequence[Any]) -> dict[int, Any]:
        """By the number of the result."""
        numbers = result_numbers(self.site)
        found = arrays[len(self.inputs) : self.first_tangent]
        return {numbers[place]: array for place, array in zip(self.results, found)}


def result_numbers(site: Site) -> list[int]:
    """Of each flat result its number among the operator's."""
    return [number for number, wanted in enumerate(site.wanted) if wanted]


# ---- the operator under differentiation ----


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, devices: Any) -> tuple:
    operator, count = site.operator, None  # of what is returned: all, also new values
    name = operator.name
    derivative = derivatives[name]
    try:
        if derivative.forward is not site.operator:
            count, site = sum(site.wanted), site.of(derivative.forward)
        found = primitive.bind(site, primals)
    except Exception as error:
        name_called(error, derivative.forward, operator)
        raise
    moved = [place for place, tangent in enumerate(tangents) if _moves(tangent)]
    numbers = result_numbers(site)
    floating = [k for k, value in enumerate(found[:count]) if is_floating(str(value.dtype))]
    rests = [ad.Zero(jax.typeof(value).to_tangent_aval()) for value in found[:count]]
    if not moved or not floating:
        return found[:count], rests
    owners = site.owners()
    derivative.check({owners[place] for place in moved})
    gradient = derivative.gradient
    linear = Linear(
        name,
        site,
        tuple(place for place, at in enumerate(owners) if at in derivative.inputs),
        tuple(k for k, number in enumerate(numbers) if number in derivative.results),
        tuple(moved),
        tuple(gradient.keep(site.inputs(primals))) if gradient else (),
        tuple(floating),
        tuple(rests[k].aval for k in floating),
        _lacking(site, gradient, primals),
    )
    arrays = [primals[place] for place in linear.inputs] + [found[k] for k in linear.results]
    arrays += [tangents[place] for place in moved]
    for k, tangent in zip(floating, tangent_p.bind(*primitive.same_varying(arrays), linear=linear)):
        rests[k] = tangent
    return found[:count], rests


def _lacking(
    site: Site, gradient: Gradient | None, primals: Sequence[Any]
) -> tuple[tuple[int, Any], ...]:
    """Results that nobody wants, whose gradients the gradient's operator takes all the same."""
    grads = gradient.grads if gradient else ()
    numbers = [at for at in grads if at not in gradient.optional and not site.wanted[at]]
    if not numbers:
        return ()
    avals = primitive.results_of(site.of(site.operator), [jax.typeof(value) for value in primals])
    return tuple((at, avals[at]) for at in numbers)


def _moves(tangent: Any) -> bool:
    return type(tangent) is not ad.Zero and tangent.dtype != jax.dtypes.float0


ad.primitive_jvps[primitive.call_p] = _jvp
tangent_p.def_abstract_eval(lambda *avals, linear: list(linear.avals))


# ---- backwards: the operator of [backward] ----


def _transpose(cotangents: Sequence[Any], *arrays: Any, linear: Linear) -> list[Any]:
    operator = linear.site.operator
    gradient = derivatives[linear.name].gradient
    if gradient is None:
        derivatives[linear.name].refuse_second()
        raise NotImplementedError(
            f"{operator.name}: has no gradient (grad, vjp), only a derivative in forward mode (jvp)"
        )
    needed = {
        at: place
        for place, at in enumerate(_tangent_owners(linear), linear.first_tangent)
        if ad.is_undefined_primal(arrays[place])
    }
    answer: list[Any] = [None] * len(arrays)
    if all(type(ct) is ad.Zero for ct in cotangents):
        for place in needed.values():
            answer[place] = ad.Zero(arrays[place].aval)
        return answer
    _refuse(linear, gradient, needed, cotangents)
    values = gradient.arguments(*_saved(linear, gradient, cotangents, arrays))
    found = _call_backward(gradient, values, needed, linear.site.use)
    for at, bit in gradient.inputs.items():
        if at in needed:
            answer[needed[at]] = found[bit]
    return answer


def _tangent_owners(linear: Linear) -> list[int]:
    owners = linear.site.owners()
    return [owners[place] for place in linear.tangents]


def _refuse(
    linear: Linear, gradient: Gradient, needed: Mapping[int, int], cotangents: Sequence[Any]
) -> None:
    operator, numbers = gradient.forward, result_numbers(linear.site)
    for at in needed:
        if at not in gradient.inputs:
            name = operator.names[at]
            raise NotImplementedError(
                f"{operator.name}: {name} requires a gradient, which the operator does not compute; "
                f"use jax.lax.stop_gradient({name})"
            )
    for k, cotangent in zip(linear.floating, cotangents):
        if numbers[k] in gradient.no_grads and type(cotangent) is not ad.Zero:
            name = operator.results[numbers[k]]["name"]
            raise NotImplementedError(
                f"{operator.name}: its result {name} has no gradient; use jax.lax.stop_gradient on it"
            )


def _saved(
    linear: Linear, gradient: Gradient, cotangents: Sequence[Any], arrays: Sequence[Any]
) -> tuple[tuple, tuple, tuple]:
    """What Gradient.arguments takes: gradients of results, saved values, the rest."""
    numbers = result_numbers(linear.site)
    by_number = {numbers[k]: ct for k, ct in zip(linear.floating, cotangents)}
    values, results = linear.values(arrays), linear.saved_results(arrays)
    by_number = {
        number: cotangent
        for number, cotangent in by_number.items()
        if number not in gradient.optional or type(cotangent) is not ad.Zero
    }
    zeros = {at: jnp.zeros(aval.shape, aval.dtype) for at, aval in linear.lacking}
    grads = tuple(
        ad.instantiate_zeros(by_number[number]) if number in by_number else zeros.get(number)
        for number in gradient.grads
    )
    saved = [values[at] for at in gradient.saved_inputs]
    saved += [results.get(number) for number in gradient.saved_results]
    return grads, tuple(saved), linear.kept


def _call_backward(
    gradient: Gradient, values: Sequence[Any], needed: Mapping[int, int], use: str | None
) -> tuple[Any, ...]:
    operator = gradient.backward
    mask = gradient.mask([at in needed for at in range(gradient.forward.count)])
    wanted = tuple(
        not param["optional"] or bool(mask >> bit & 1) for bit, param in enumerate(operator.results)
    )
    found = primitive.call(operator, values, wanted, use)
    return found if isinstance(found, tuple) else (found,)


ad.primitive_transposes[tangent_p] = _transpose


# ---- forwards: the formulas of [tangent] ----


def _push(*arrays: Any, linear: Linear) -> list[Any]:
    site = linear.site
    operator, rule = site.operator, derivatives[linear.name].tangent
    owners = [operator.names[at] for at in _tangent_owners(linear)]
    tangents = dict(zip(owners, arrays[linear.first_tangent :]))
    rule.check(tangents)
    values = dict(zip(operator.names, linear.values(arrays)))
    for number, value in linear.saved_results(arrays).items():
        values[operator.results[number]["name"]] = value
    (aval,) = linear.avals  # of the first and only result
    with resumed(site.use):
        found = rule.push(values, tangents, _call_by_name, _fill, aval.dtype)
    if found is None:
        found = jnp.zeros_like(arrays[linear.first_tangent], shape=aval.shape, dtype=aval.dtype)
    return [found]


def _call_by_name(path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    from anyop.jax.dispatch import call_by_name

    return call_by_name(path, args, kwargs)


def _fill(like: Any, shape: Any, number: float) -> Any:
    return jnp.full_like(like, number, shape=like.shape if shape is None else shape)


def _jvp_of_tangent(
    primals: Sequence[Any], tangents: Sequence[Any], *, linear: Linear
) -> tuple[list[Any], list[Any]]:
    """A second derivative: that of the formulas."""
    moved = [ad.instantiate_zeros(tangent) for tangent in tangents]
    return jax.jvp(lambda *arrays: _push(*arrays, linear=linear), tuple(primals), tuple(moved))


def _batched_tangent(arrays: Sequence[Any], dims: Sequence[Any], *, linear: Linear) -> tuple:
    push = jax.vmap(lambda *own: _push(*own, linear=linear), in_axes=tuple(dims))
    found = push(*arrays)
    return found, [0] * len(found)


def _evaluate(*arrays: Any, linear: Linear) -> list[Any]:
    return _push(*arrays, linear=linear)


tangent_p.def_impl(_evaluate)
mlir.register_lowering(tangent_p, mlir.lower_fun(_evaluate, multiple_results=True))
ad.primitive_jvps[tangent_p] = _jvp_of_tangent
batching.primitive_batchers[tangent_p] = _batched_tangent
