# SPDX-License-Identifier: Apache-2.0
"""Operators that stay calls on the device inside code that inductor generates for the inner device.

They are those whose route is not torch's kernel, random ones, which draw from the device's generator, and operators
of other libraries. Each becomes an operator of the namespace anyop_compiled that takes the inner device's tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.immutable_collections import immutable_list
from torch.utils._pytree import tree_leaves, tree_map

from anyop.torch.device._place import name
from anyop.torch.device.inner import outer

_NAMESPACE = "anyop_compiled"
# What inductor has code for; it is never replaced.
_TORCH = {"aten", "prims", "inductor", "rngprims", "profiler", "quantized_decomposed"}
_ops = torch.ops.anyop_device
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")
_made: dict[OpOverload, OpOverload] = {}
_FUNCTIONALIZED = {
    torch.ops.higher_order.auto_functionalized,
    torch.ops.higher_order.auto_functionalized_v2,
}


def keep_call(node: Node) -> None:
    """Replace the node where its operator stays a call on the device."""
    if node.target in _FUNCTIONALIZED:
        _keep_mutating(node)
        return
    op = node.target
    if not isinstance(op, OpOverload) or op._schema.is_mutable or not _stays(op):
        return
    indices = [
        device_index(value.meta["val"]) for value in _tensors(op, node.args, node.kwargs, Node)
    ]
    result = max((device_index(value) for value in tree_leaves(node.meta.get("val"))), default=-1)
    if max([result, *indices]) < 0:
        return
    node.target = _made.get(op) or _make(op)
    _add(node, result, indices)


def _add(node: Node, on: int, at: list[int]) -> None:
    """The arguments that _make adds."""
    added = {"on": on, "at": immutable_list(at)}
    node.kwargs = {**node.kwargs, **added}
    if "eager_input_vals" in node.meta:  # inductor wants one for each argument
        values, named = node.meta["eager_input_vals"]
        node.meta["eager_input_vals"] = (values, {**named, **added})


def _keep_mutating(node: Node) -> None:
    """An operator that writes into its arguments, whose tensors are all on one device."""
    op, *rest = node.args
    places = {device_index(each.meta.get("val")) for each in node.all_input_nodes}
    if isinstance(op, OpOverload) and _stays(op) and len(places) == 1 and max(places) >= 0:
        node.args = (_made.get(op) or _make(op), *rest)
        _add(node, max(places), [])


def _stays(op: OpOverload) -> bool:
    if op.namespace not in _TORCH or torch.Tag.nondeterministic_seeded in op.tags:
        return True
    return op.namespace == "aten" and not _route(op).startswith("aten")


def _route(op: OpOverload) -> str:
    try:
        return _ops.route.default(op.name().removeprefix("aten::"))
    except ValueError:  # no kernel of its own
        return "aten"


def device_index(value: Any) -> int:
    """The number of the tensor's device; -1 for tensors of other devices, and for other things."""
    is_here = isinstance(value, torch.Tensor) and value.device.type == name()
    return value.device.index if is_here else -1


def _tensors(op: OpOverload, args: Any, kwargs: Any, kind: Any) -> Iterator[Any]:
    """The tensors, or nodes of tensors, among the arguments in the order of the schema."""
    for place, argument in enumerate(op._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for leaf in tree_leaves(value):
            if isinstance(leaf, kind) and (
                kind is torch.Tensor or isinstance(leaf.meta.get("val"), torch.Tensor)
            ):
                yield leaf


def _make(op: OpOverload) -> OpOverload:
    """The operator that takes inner tensors, with two more arguments.

    at: the device's number of each tensor, -1 for those that lie elsewhere; [] where all are on the device on.
    on: the device's number of the results.
    """
    text = str(op._schema)
    arguments, _, results = text[text.index("(") + 1 :].rpartition(") -> ")
    has_named = any(argument.kwarg_only for argument in op._schema.arguments)
    named = "int on, int[] at" if has_named else "*, int on, int[] at"
    short = op.name().replace("::", "__").replace(".", "__")
    listed = ", ".join(filter(None, [arguments, named]))
    _library.define(f"{short}({listed}) -> {results}", tags=op.tags)

    def run(*args: Any, on: int, at: list[int], **kwargs: Any) -> Any:
        with torch.device(name(), max(on, *at, 0)):
            return _run(op, args, kwargs, on, at)

    def fake(*args: Any, on: int, at: list[int], **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    _library.impl(short, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{short}", fake, lib=_library)
    _made[op] = getattr(getattr(torch.ops, _NAMESPACE), short).default
    return _made[op]


def _run(op: OpOverload, args: Any, kwargs: Any, on: int, at: list[int]) -> Any:
    tensors = list(_tensors(op, args, kwargs, torch.Tensor))
    places = zip(tensors, at or [on] * len(tensors))
    here = {id(tensor): index for tensor, index in places if index >= 0}

    def there(value: Any) -> Any:
        if isinstance(value, torch.device) and on >= 0:
            return torch.device(name(), on)
        return outer(value, here[id(value)]) if id(value) in here else value

    return tree_map(_inner, _wait(op, op(*tree_map(there, args), **tree_map(there, kwargs))))


def _inner(value: Any) -> Any:
    return _ops.inner.default(value) if device_index(value) >= 0 else value


def _wait(op: OpOverload, result: Any) -> Any:
    """Of a collective: wait_tensor finds what to wait for by the storage, and that is another one later."""
    if op.namespace != "_c10d_functional":
        return result
    wait = torch.ops._c10d_functional.wait_tensor.default
    return tree_map(lambda value: wait(value) if isinstance(value, torch.Tensor) else value, result)
