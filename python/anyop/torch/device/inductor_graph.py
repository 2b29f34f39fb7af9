# SPDX-License-Identifier: Apache-2.0
"""Moves a graph of the device to the inner device, on which inductor generates code: CPU or CUDA, the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves, tree_map

from anyop.torch.device.inductor_calls import device_index, keep_call
from anyop.torch.device.inner import inner_device

_ops = torch.ops.anyop_device


def uses_device(graph: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether something in it lies on the device."""
    values = [*inputs, *(node.meta.get("val") for node in graph.graph.nodes)]
    return any(device_index(value) >= 0 for value in tree_leaves(values))


def move(graph: GraphModule) -> None:
    """In place: devices, constants and graphs inside; what must stay a call on the device becomes one."""
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            _move_attribute(graph, node)
        elif node.op == "call_function" and not _as_clone(node):
            _as_randint(node)
            keep_call(node)
        node.args = map_aggregate(node.args, _move_argument)
        node.kwargs = map_aggregate(node.kwargs, _move_argument)
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = tree_map(move_fake, node.meta["val"])
    graph.recompile()


def _move_argument(value: Any) -> Any:
    if isinstance(value, torch.device):
        return inner_device(value)
    return value


def _move_attribute(graph: GraphModule, node: Node) -> None:
    holder, _, attribute = node.target.rpartition(".")
    owner = graph.get_submodule(holder)
    value = getattr(owner, attribute)
    if isinstance(value, GraphModule):
        move(value)
    elif device_index(value) >= 0:
        moved = move_fake(value) if isinstance(value, FakeTensor) else _ops.inner.default(value)
        delattr(owner, attribute)
        setattr(owner, attribute, moved)


def _as_clone(node: Node) -> bool:
    """A copy between devices that become one device stays a copy: its result never shares memory with its source."""
    if node.target is not torch.ops.prims.device_put.default:
        return False
    source, target = node.args[:2]
    if inner_device(source.meta["val"].device) != inner_device(torch.device(target)):
        return False
    node.target, node.args, node.kwargs = torch.ops.aten.clone.default, (source,), {}
    return True


def _as_randint(node: Node) -> None:
    """Inductor's seeds are drawn as its own code draws them, from the device's generator."""
    if node.target is not torch.ops.prims.inductor_seeds.default:
        return
    count, device = node.args
    node.target, node.args = torch.ops.aten.randint.low, (-(2**63), 2**63 - 1, [count])
    node.kwargs = {"dtype": torch.int64, "device": device}


def move_fake(value: Any) -> Any:
    """A fake tensor of the inner device with the same sizes, strides and storage; other values stay."""
    if device_index(value) < 0:
        return value
    mode = value.fake_mode
    with in_kernel_invocation_manager(mode):
        meta = torch.ops.aten.detach.default(value)
    convert: Callable[..., FakeTensor] = mode.fake_tensor_converter.from_meta_and_device
    return convert(mode, meta, inner_device(value.device))
