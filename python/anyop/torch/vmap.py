# SPDX-License-Identifier: Apache-2.0
"""torch.vmap: the batched dimension becomes one more leading size where the schema has a group of them.

Where it has none, or where something counts the group's sizes, the operator runs once for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from anyop.adapter.check import Check
from anyop.adapter.shapes import counted_groups
from anyop.torch.dtypes import BY_NAME
from anyop.torch.operators import Operator


def install(operator: Operator, library: torch.library.Library) -> None:
    """Register the batching rule of the functional overload."""
    fold = _folding(operator)

    def rule(info: Any, in_dims: tuple, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs, wanted = operator.fill(args, kwargs), operator.wanted(args, kwargs)
        dims = [*in_dims[: operator.count], *[None] * (operator.count - len(in_dims))]
        found = fold(inputs, dims, info.batch_size, wanted) if fold else None
        if found is None:
            found = _sequential(operator, inputs, dims, info.batch_size, wanted)
        out_dims = (
            tuple(None if value is None else 0 for value in found)
            if isinstance(found, tuple)
            else None if found is None else 0
        )  # fmt: skip
        return found, out_dims

    torch.library.register_vmap(operator.qualified, rule, lib=library)


# ---- one more leading size ----


def _folding(operator: Operator) -> Callable[..., Any] | None:
    """Runs all elements in one call; None where the schema does not allow it for any call."""
    results = operator.results
    groups = {_names(param["shape"]["group"]) for param in results}
    leading = all(not param["shape"]["before"] for param in results)
    if operator.mutated or not leading or len(groups) != 1 or () in groups:
        return None
    (members,) = groups
    tensors = [(at, operator.inputs[at]) for at in operator.tensors]
    expressions = [c["expression"] for c in operator.metadata["conditions"]]
    for param in (*results, *(param for _, param in tensors)):
        expressions += [*param["shape"]["before"], *param["shape"]["after"]]
    if any(set(counted_groups(expression)) & set(members) for expression in expressions):
        return None
    in_group = {
        at: param
        for at, param in tensors
        if set(_names(param["shape"]["group"])) & set(members) and not param["list"]
    }
    if any(param["shape"]["before"] for param in in_group.values()):
        return None

    def fold(inputs: list[Any], dims: Sequence[Any], batch: Any, wanted: int) -> Any:
        batched = {at for at in operator.tensors if dims[at] is not None}
        if any(at not in in_group or isinstance(dims[at], (list, tuple)) for at in batched):
            return None  # a list's dims are a list, whether they are batched or not
        full = {_names(in_group[at]["shape"]["group"]) for at in batched}
        if any(
            len(_names(param["shape"]["group"])) > 1 and at not in batched
            for at, param in in_group.items()
        ):
            return None  # a gradient of a broadcast, without the batch that the broadcast has
        rank = max(
            inputs[at].ndim - (at in batched) - _terms(param)
            for at, param in in_group.items()
            if inputs[at] is not None and not param["shape"]["expand"]
        )
        folded = list(inputs)
        for at, param in in_group.items():
            if inputs[at] is None:
                continue
            if at in batched or (
                _names(param["shape"]["group"]) in full and not param["shape"]["expand"]
            ):
                pads = len(members) > 1 or param["shape"]["expand"]
                folded[at] = _leading(
                    inputs[at], dims[at], batch, rank + _terms(param), pads, param
                )
        return operator.call(folded, wanted)

    return fold


def _leading(
    tensor: torch.Tensor,
    dim: int | None,
    batch: Any,
    rank: int,
    pads: bool,
    param: Mapping[str, Any],
) -> torch.Tensor:
    """The tensor with the batch in front, and sizes 1 behind it as far as broadcasting needs them."""
    if dim is None:
        tensor = tensor.unsqueeze(0).expand(batch, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    if pads:
        ones = (1,) * (rank + 1 - tensor.ndim)
        tensor = tensor.reshape(tensor.shape[0], *ones, *tensor.shape[1:])
    return tensor if param["layout"] == "strided" else tensor.contiguous()


def _names(group: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if group is None else (group,) if isinstance(group, str) else tuple(group)


def _terms(param: Mapping[str, Any]) -> int:
    return len(param["shape"]["before"]) + len(param["shape"]["after"])


# ---- one after the other ----


def _sequential(
    operator: Operator, inputs: list[Any], dims: Sequence[Any], batch: int, wanted: int
) -> Any:
    for at in operator.mutated:
        if inputs[at] is not None and not _all_batched(dims[at]):
            raise RuntimeError(
                f"{operator.name}: vmap: {operator.names[at]} is changed, so it must be batched where "
                "another argument is"
            )
    if batch == 0:
        return _empty(operator, inputs, dims, wanted)
    found = []
    for element in range(batch):
        sliced = [_slice(value, dim, element) for value, dim in zip(inputs, dims)]
        for at in operator.tensors:
            if at not in operator.mutated:
                sliced[at] = _laid(sliced[at], operator.inputs[at]["layout"])
        found.append(operator.call(sliced, wanted))
    if isinstance(found[0], tuple):
        return tuple(None if values[0] is None else torch.stack(values) for values in zip(*found))
    return None if found[0] is None else torch.stack(found)


def _all_batched(dim: Any) -> bool:
    return None not in dim if isinstance(dim, (list, tuple)) else dim is not None


def _slice(value: Any, dim: Any, element: int) -> Any:
    if isinstance(dim, (list, tuple)):
        return [_slice(item, d, element) for item, d in zip(value, dim)]
    return value if dim is None else value.select(dim, element)


def _laid(value: Any, layout: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_laid(item, layout) for item in value]
    return value if value is None or layout == "strided" else value.contiguous()


def _empty(operator: Operator, inputs: list[Any], dims: Sequence[Any], wanted: int) -> Any:
    """No element: only shapes."""

    def lacking(value: Any, dim: Any) -> Any:
        if isinstance(dim, (list, tuple)):
            return [lacking(item, d) for item, d in zip(value, dim)]
        if dim is None:
            return value
        sizes = [size for at, size in enumerate(value.shape) if at != dim % value.ndim]
        return value.new_empty(sizes)

    check = Check(operator, [lacking(value, dim) for value, dim in zip(inputs, dims)])
    found = []
    for bit, param in enumerate(operator.results):
        if param["optional"] and not wanted >> bit & 1:
            found.append(None)
            continue
        shape, dtype = check.result(param)
        found.append(torch.empty((0, *shape), dtype=BY_NAME[dtype], device=check.device))
    return found[0] if len(found) == 1 else tuple(found) if found else None
