# SPDX-License-Identifier: Apache-2.0
"""Inductor on the device: what AOTAutograd hands to it is compiled for the inner device, whose memory it is.

    torch.compile ─► Dynamo ─► AOTAutograd, on the device ─► _compile: moves the graph to the CPU or CUDA
                                                              └─► inductor: C++ or Triton, caches, CUDA graphs
    a call ─► AOTAutograd's wrapper ─► run: inner(inputs) ─► inductor's code ─► outer(results)

Tensors change their label at run time, not their place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from anyop.torch.device import inductor_graph
from anyop.torch.device._place import name
from anyop.torch.device.inductor_calls import device_index
from anyop.torch.device.inner import outer

_ops = torch.ops.anyop_device


def wrap(module: Any) -> None:
    """Module is torch._inductor.compile_fx: it has no place for a device that is compiled as another one."""
    inner = getattr(module, "_compile_fx_inner", None)
    if inner is not None:  # else inductor says itself that it does not know the device
        module._compile_fx_inner = functools.wraps(inner)(functools.partial(_compile, inner))


def _compile(inner: Callable[..., Any], graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
    if not inductor_graph.uses_device(graph, inputs):
        return inner(graph, inputs, **options)
    _refuse_what_cannot_be()
    _refuse_lazy_bits(graph)
    results = _results(graph)
    inductor_graph.move(graph)
    compiled = inner(graph, [inductor_graph.move_fake(value) for value in inputs], **options)
    return _relabelling(compiled, [device_index(value) for value in inputs], *results)


def _refuse_what_cannot_be() -> None:
    from torch._inductor.virtualized import V

    if not _ops.backend_available.default("aten"):
        raise NotImplementedError(
            f"inductor generates no code for the memory of {_ops.platform.default()}: "
            'use torch.compile(backend="aot_eager")'
        )
    if V.aot_compilation:
        raise NotImplementedError(
            f"AOTInductor makes no packages for {name()}: compile the model on the CPU or CUDA"
        )
    if getattr(torch._functorch.config, "bundled_autograd_cache", False):
        raise NotImplementedError(f"bundled_autograd_cache keeps no code for {name()}: turn it off")


def _refuse_lazy_bits(graph: Any) -> None:
    """A conjugated view has no memory of the inner device to write into."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        value = node.args[0].meta["val"]
        if device_index(value) >= 0 and (value.is_conj() or value.is_neg()):
            raise NotImplementedError(
                "inductor cannot write into a conjugated or negated view: resolve_conj() it first"
            )


def _results(graph: Any) -> tuple[list[int], dict[int, int]]:
    """The device's number of each result, -1 for others; and which results are inputs themselves."""
    inputs = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    (listed,) = graph.graph.output_node().args
    values = [getattr(node, "meta", {}).get("val") for node in listed]
    same = {i: inputs[node] for i, node in enumerate(listed) if node in inputs}
    return [device_index(value) for value in values], same


def _relabelling(
    compiled: Any, inputs: list[int], results: list[int], same: dict[int, int]
) -> Callable[[list[Any]], Sequence[Any]]:
    """Calls compiled with tensors of the inner device, and gives those of the device back.

    A result that is an input is the same tensor: autograd compares its version. The list of inputs is emptied, as by
    inductor's own code, so that each is freed after its last use.
    """
    to_inner = _ops.inner.default
    is_boxed = getattr(compiled, "_boxed_call", False)

    def run(args: list[Any]) -> Sequence[Any]:
        given = {i: args[j] for i, j in same.items()}
        moved = [
            to_inner(value) if at >= 0 and not value.is_cpu else value
            for value, at in zip(args, inputs)
        ]
        args.clear()
        made = compiled(moved) if is_boxed else compiled(*moved)
        return [
            given[i] if i in given else outer(value, at)
            for i, (value, at) in enumerate(zip(made, results))
        ]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
