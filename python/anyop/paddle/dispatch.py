# SPDX-License-Identifier: Apache-2.0
"""Where a call of anyop.<op> goes when the C entry may not use its tensors' memory: gradients, AMP, static graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle

from anyop.adapter.gradient import Gradient
from anyop.adapter.object_text import object_text
from anyop.adapter.operators import Operator
from anyop.paddle import autocast, graph
from anyop.paddle.function import entries

dispatched: dict[str, Callable[[tuple, dict[str, Any]], Any]] = {}  # by the operator's name


def slow_call(way: str, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What the C function calls: "gradient" for eager tensors of which some want one, else "dispatch"."""
    if way == "gradient":
        return entries[name](args, kwargs)
    return dispatched[name](args, kwargs)


def install(operator: Operator, how: Gradient | str) -> None:
    """Make the entry of one operator."""

    def entry(args: tuple, kwargs: dict[str, Any]) -> Any:
        values = operator.bind(args, kwargs)
        inputs, results = values[: operator.count], values[operator.count :]
        for at in range(operator.count):
            if operator.inputs[at]["kind"] == "Tensor":
                _check(operator, at, inputs[at])
            else:
                inputs[at] = _attribute(operator, at, inputs[at])
        if autocast.is_on():
            inputs = autocast.cast_inputs(operator, inputs)
        if paddle.in_dynamic_mode():
            for at, value in enumerate((*inputs, *results)):
                _refuse_again(operator, at, value)
            return _eager(operator, inputs, results)
        for at in operator.tensors:
            _refuse_without_memory(operator, at, inputs[at])
        return graph.call(operator, how, inputs, results)

    dispatched[operator.name] = entry


def _eager(operator: Operator, inputs: list[Any], results: list[Any]) -> Any:
    """The C entry again, with nothing left that keeps it from the tensors."""
    named = dict(zip(operator.keywords, inputs[operator.positional :]))
    given = dict(zip(operator.names[operator.count :], results))
    named.update((name, value) for name, value in given.items() if value is not None)
    with autocast.off():
        return operator.function(*inputs[: operator.positional], **named)


def _refuse_again(operator: Operator, at: int, value: Any) -> None:
    """TypeError for what the C entry would send here again, for ever: values of graphs, subclasses as results."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        kind = type(item)
        if kind is paddle.pir.Value or (issubclass(kind, paddle.Tensor) and kind not in _KNOWN):
            param = (*operator.inputs, *operator.results)[at]
            what = "an eager paddle.Tensor: no static graph is made here"
            raise _wrong(operator, param, item, what)


def _refuse_without_memory(operator: Operator, at: int, value: Any) -> None:
    """As the guard does: an eager tensor of these kinds in a static graph ends the process (Paddle 3.3)."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, paddle.Tensor) and (
            item.is_dist() or not item.is_dense() or not item._is_initialized()
        ):
            raise TypeError(
                f"{operator.name}: {operator.names[at]} is a paddle.Tensor without plain memory (sparse, "
                "distributed, or not initialized), expected a dense one"
            )


def _attribute(operator: Operator, at: int, value: Any) -> Any:
    """A number, text or dtype. What a graph computes has no value yet, and shapes would depend on it."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(item, paddle.pir.Value) for item in items):
        param = operator.inputs[at]
        raise TypeError(
            f"{operator.name}: {param['name']} is a value of a static graph, expected {param['kind']}: it must be "
            "known when the graph is made"
        )
    return operator.convert_in_range(at, value)


def _check(operator: Operator, at: int, value: Any) -> None:
    """TypeError for what is neither an eager tensor nor a value of a graph."""
    param = operator.inputs[at]
    if value is None and operator.optional[at]:
        return
    if param["list"]:
        if not isinstance(value, (list, tuple)):
            raise _wrong(operator, param, value, "a list of tensors")
        for item in value:
            if not (item is None and param["optional_elements"]):
                _check_tensor(operator, param, item)
        return
    _check_tensor(operator, param, value)


def _check_tensor(operator: Operator, param: dict[str, Any], value: Any) -> None:
    if type(value) in _KNOWN:
        return
    # isinstance says that every tensor is a Variable.
    if isinstance(value, paddle.static.Variable) and not isinstance(value, paddle.Tensor):
        raise NotImplementedError(
            f"{operator.name}: {param['name']} is a Variable of a program before PIR, which anyop does not support; "
            "leave FLAGS_enable_pir_api as it is"
        )
    raise _wrong(operator, param, value, "a paddle.Tensor as the tensors before it")


_KNOWN = {paddle.Tensor, paddle.base.framework.EagerParamBase, paddle.pir.Value}


def _wrong(operator: Operator, param: dict[str, Any], value: Any, expected: str) -> TypeError:
    return TypeError(
        f"{operator.name}: {param['name']} is {object_text(value)}, expected {expected}"
    )
