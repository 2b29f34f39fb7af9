# SPDX-License-Identifier: Apache-2.0
"""torch.vmap: the batched dimension becomes one more leading size where the schema has a group of them.

Where it has none, or where something counts the group's sizes, the operator runs once for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call_vmap_helper
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from anyop.adapter.check import Check
from anyop.adapter.groups import fold, independent
from anyop.torch.adapter.dtypes import BY_NAME
from anyop.torch.adapter.operators import Operator


def install(operator: Operator, library: torch.library.Library) -> None:
    """Register the batching rule of the functional overload, as torch.library.register_vmap does, which looks it up."""

    def rule(info: Any, in_dims: tuple, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs, wanted = operator.fill(args, kwargs), operator.wanted(args, kwargs)
        dims = [*in_dims[: operator.count], *[None] * (operator.count - len(in_dims))]
        use = operator.scope(kwargs)
        found = _folded(operator, inputs, dims, info.batch_size, wanted, use)
        if found is None:
            found = _sequential(operator, inputs, dims, info.batch_size, wanted, use)
        out_dims = (
            tuple(None if value is None else 0 for value in found)
            if isinstance(found, tuple)
            else None if found is None else 0
        )  # fmt: skip
        return found, out_dims

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        interpreter = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(
            interpreter, rule, operator.default, *args, **kwargs
        )

    library.impl(operator.short, kernel, "FuncTorchBatched", with_keyset=True)


# ---- one more leading size ----


def _folded(
    operator: Operator,
    inputs: list[Any],
    dims: Sequence[Any],
    batch: Any,
    wanted: int,
    use: str | None,
) -> Any:
    """All elements in one call; None where the schema does not allow it."""
    given = [at for at in operator.tensors if inputs[at] is not None]
    kept = tuple(bool(wanted >> bit & 1) for bit in range(len(operator.results)))
    plan = fold(
        [operator.inputs[at] for at in given],
        independent(operator, kept if operator.has_optional_results else None),
        [0 if operator.inputs[at]["list"] else inputs[at].ndim for at in given],
        [_is_batched(dims[at]) for at in given],
    )
    if plan is None:
        return None
    folded = list(inputs)
    for at, rank in zip(given, plan):
        if rank is not None:
            folded[at] = _leading(inputs[at], dims[at], batch, rank, operator.inputs[at]["layout"])
    return operator.call(folded, wanted, use)


def _is_batched(dim: Any) -> bool:
    """Whether a tensor is, or any of a list."""
    return any(map(_is_batched, dim)) if isinstance(dim, (list, tuple)) else dim is not None


def _leading(
    tensor: torch.Tensor, dim: int | None, batch: Any, rank: int, layout: str
) -> torch.Tensor:
    """The tensor with the batch in front, and sizes 1 behind it as far as broadcasting needs them."""
    if dim is None:
        tensor = tensor.unsqueeze(0).expand(batch, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    if tensor.ndim <= rank:
        ones = (1,) * (rank + 1 - tensor.ndim)
        tensor = tensor.reshape(tensor.shape[0], *ones, *tensor.shape[1:])
    return tensor if layout == "strided" else tensor.contiguous()


# ---- one after the other ----


def _sequential(
    operator: Operator,
    inputs: list[Any],
    dims: Sequence[Any],
    batch: int,
    wanted: int,
    use: str | None,
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
        found.append(operator.call(sliced, wanted, use))
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
