# SPDX-License-Identifier: Apache-2.0
"""Arrays on several devices: independent sizes and groups stay where they are, all others are brought together.

A gradient without the group, such as that of a weight, is summed over the devices that share the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from anyop.adapter.groups import independent, names, terms
from anyop.jax.call_site import Site
from anyop.jax.groups import summed

Shape = Sequence[Any]
Factors = list[str | None]  # of each size: its place in the group, None where it must be whole


class Rule:
    """Of one call with these shapes: which sizes of which arrays are the same."""

    def __init__(self, site: Site, args: Sequence[Shape], results: Sequence[Shape]) -> None:
        operator = site.operator
        members = independent(operator, site.wanted) or summed(operator)
        owners = [operator.inputs[at] for at in site.owners()]
        kept = [param for param, wanted in zip(operator.results, site.wanted) if wanted]
        kept += [owners[place] for place in site.changed()]
        shapes, params = [*args, *results], [*owners, *kept]
        middles = [_middle(param, shape, members) for param, shape in zip(params, shapes)]
        full = [1] * max((len(middle) for middle in middles if middle is not None), default=0)
        for middle in middles:
            for place, size in enumerate(reversed(middle or ())):
                full[-1 - place] = size if _is_one(full[-1 - place]) else full[-1 - place]
        factors = [
            _factors(param, shape, middle, full)
            for param, shape, middle in zip(params, shapes, middles)
        ]
        self.sizes = {f"g{place}": size for place, size in enumerate(full)}
        letters = [
            letter
            for letter in operator.metadata["independent"]
            if all(_has(param, letter) for param in kept)
        ]
        for param, shape, own in zip(params, shapes, factors):
            for dim, letter in _letters(param, len(shape), letters):
                if not (param["shape"]["expand"] and _is_one(shape[dim])):
                    own[dim] = f"l{letter}"
                    self.sizes[own[dim]] = shape[dim]
        self.args, self.results = factors[: len(args)], factors[len(args) :]

    # ---- Shardy ----

    def text(self) -> tuple[str, tuple[str, ...]]:
        """The rule as custom_partitioning takes it, and its factors that must be whole."""
        whole: list[str] = []

        def name(factor: str | None) -> str:
            if factor is None:
                factor = f"w{len(whole)}"
                whole.append(factor)
            return factor

        sides = [
            ", ".join(" ".join(map(name, factors)) for factors in side)
            for side in (self.args, self.results)
        ]
        return " -> ".join(sides), tuple(whole)

    def install(self, function: Any, run: Callable[..., Any]) -> None:
        """Tell a custom_partitioning all this."""

        def partition(mesh: Any, args: Any, results: Any) -> tuple:
            axes = self.axes([*args, *results], mesh)
            shard = [_sharding(mesh, factors, axes) for factors in (*self.args, *self.results)]

            def local(*arrays: Any) -> tuple:
                return tuple(map(self._sum(axes), run(*arrays), self.results))

            places = len(self.args)
            return mesh, local, tuple(shard[places:]), tuple(shard[:places])

        def infer(mesh: Any, args: Any, results: Any) -> tuple:
            axes = self.axes(args, mesh)
            return tuple(_sharding(mesh, factors, axes) for factors in self.results)

        rule, whole = self.text()
        function.def_partition(
            partition,
            infer_sharding_from_operands=infer,
            sharding_rule=rule,
            need_replication_factors=whole,
        )

    def axes(self, arrays: Sequence[Any], mesh: Any) -> dict[str, tuple[str, ...]]:
        """Of each factor, the axes of the mesh that share it. Only where every device gets equally much."""
        found: dict[str, tuple[str, ...]] = {}
        for array, factors in zip(arrays, (*self.args, *self.results)):
            spec = getattr(array.sharding, "spec", ())
            for factor, entry in zip(factors, spec):
                axes = _axes_of(entry)
                used = {axis for other in found.values() for axis in other}
                if factor is None or factor in found or not axes or used.intersection(axes):
                    continue
                parts = 1
                for axis in axes:
                    parts *= mesh.shape[axis]
                if self.sizes[factor] % parts == 0:
                    found[factor] = axes
        return found

    def _sum(self, axes: Mapping[str, tuple[str, ...]]) -> Callable[[Any, Factors], Any]:
        def add(result: Any, factors: Factors) -> Any:
            missing = [axis for factor in axes if factor not in factors for axis in axes[factor]]
            return sum_p.bind(result, axes=tuple(missing)) if missing else result

        return add


# ---- meshes with explicit axes ----


def explicit_specs(
    site: Site, avals: Sequence[Any], results: Sequence[Shape]
) -> list[PartitionSpec]:
    """How results are sharded where arrays' types say how they are."""
    rule = None
    if any(axis for aval in avals for entry in aval.sharding.spec for axis in _axes_of(entry)):
        rule = Rule(site, [aval.shape for aval in avals], results)
        _refuse(site, rule, avals)
        axes = rule.axes(avals, avals[0].sharding.mesh)
    return [
        PartitionSpec(*(axes.get(factor) for factor in rule.results[place]))
        if rule
        else PartitionSpec(*(None,) * len(shape))
        for place, shape in enumerate(results)
    ]


def _refuse(site: Site, rule: Rule, avals: Sequence[Any]) -> None:
    """Nothing is gathered where the program says how arrays lie."""
    axes = rule.axes(avals, avals[0].sharding.mesh)
    for at, aval, factors in zip(site.owners(), avals, rule.args):
        for dim, (factor, entry) in enumerate(zip(factors, aval.sharding.spec)):
            if _axes_of(entry) != axes.get(factor, ()) and _axes_of(entry):
                raise ValueError(
                    f"{site.operator.name}: dimension {dim} of {site.operator.names[at]} is sharded "
                    f"over {entry!r}, where the operator needs it whole or as the arguments before "
                    "it; use jax.sharding.reshard"
                )


# ---- sizes ----


def _middle(param: Mapping[str, Any], shape: Shape, members: Sequence[str]) -> Shape | None:
    """The sizes of the group in a tensor; None where it has none of them."""
    group = names(param["shape"]["group"])
    if not members or not set(group) & set(members):
        return None
    if param["shape"]["expand"] or param["shape"]["before"] or param.get("list"):
        return None
    return shape[: len(shape) - terms(param)]


def _factors(
    param: Mapping[str, Any], shape: Shape, middle: Shape | None, full: Sequence[Any]
) -> Factors:
    if middle is None:
        return [None] * len(shape)
    first = len(full) - len(middle)
    own: Factors = [
        f"g{first + place}" if not _is_one(size) or _is_one(full[first + place]) else None
        for place, size in enumerate(middle)
    ]
    return own + [None] * (len(shape) - len(middle))


def _has(param: Mapping[str, Any], letter: str) -> bool:
    return letter in [*param["shape"]["before"], *param["shape"]["after"]]


def _letters(
    param: Mapping[str, Any], rank: int, independent: Sequence[str]
) -> list[tuple[int, str]]:
    """The dimensions of a tensor that are independent sizes."""
    if param.get("list"):
        return []
    before, after = param["shape"]["before"], param["shape"]["after"]
    if param["shape"]["expand"] and param["shape"]["group"] is None:  # aligned at its end
        places = [(rank - len(before) + at, term) for at, term in enumerate(before)]
    else:
        places = list(enumerate(before))
    places += [(rank - len(after) + at, term) for at, term in enumerate(after)]
    return [(dim, term) for dim, term in places if dim >= 0 and term in independent]


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _axes_of(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _sharding(mesh: Any, factors: Factors, axes: Mapping[str, tuple[str, ...]]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes.get(factor) for factor in factors)))


# ---- the sum over devices ----

sum_p = type(jax.lax.add_p)("anyop_sum")
sum_p.def_abstract_eval(lambda x, axes: x.update())


def _lower_sum(context: Any, x: Any, *, axes: tuple[str, ...]) -> Any:
    """psum, lowered as if no mesh were set: on explicit axes JAX 0.11 shards the addition too, which XLA refuses."""
    lower = mlir.lower_fun(lambda x: jax.lax.psum(x, axes), multiple_results=False)
    (aval,) = context.avals_in
    plain = [jax.core.ShapedArray(aval.shape, aval.dtype)]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return lower(context.replace(avals_in=plain, avals_out=plain), x)


mlir.register_lowering(sum_p, _lower_sum)
