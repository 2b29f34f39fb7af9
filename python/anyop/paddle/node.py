# SPDX-License-Identifier: Apache-2.0
"""One node of a static graph: a Python function that the executor calls with eager tensors. Nothing is built for it.

An exception in a function that infers shapes would end the process, so that one only hands out what is known already.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle import _C_ops
from paddle.static import MetaTensor

from anyop._load import core
from anyop._scope import resumed
from anyop.adapter.operators import Operator

_numbers = itertools.count()
_nodes: dict[str, dict[str, Any]] = {}  # by what tells two apart; they keep the functions alive


def make(
    operator: Operator,
    inputs: Sequence[Any],
    found: Sequence[tuple[list[int], str] | None],
    use: str | None,
) -> list[Any]:
    """The values of all results that are wanted, of a call in this scope."""
    values, rebuild = flatten(operator, inputs)
    outputs = [what for what in found if what is not None]
    # Python calls 0.0 and -0.0 equal, and 1, 1.0 and True: their texts differ.
    key = repr((operator.name, rebuild(range(len(values))), found, use))
    if key not in _nodes:
        # The executor looks a name up without what follows "_grad": that is how C++ names gradients.
        _nodes[key] = {
            "name": f"anyop.{operator.short.replace('_grad', '.grad')}_{next(_numbers)}",
            "input_names": [f"x{at}" for at in range(len(values))],
            "output_names": [f"y{at}" for at in range(len(outputs))],
            "attrs": {
                "infer_meta_fn_ptr": _metas(outputs),
                "fn_ptr": _runner(operator, rebuild, found, use),
            },
            "inplace_map": {},
        }
    return list(_C_ops._run_python_op(*values, **_nodes[key]))


def flatten(
    operator: Operator, inputs: Sequence[Any]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """All tensors in one list, and the function that puts others at their places among the inputs."""
    values: list[Any] = []
    places: list[Any] = []  # of each input: an index, a list of them, or None
    others_than_tensors = [
        None if at in operator.tensors else value for at, value in enumerate(inputs)
    ]
    for at, value in enumerate(inputs):
        if at not in operator.tensors:
            places.append(None)
        elif isinstance(value, (list, tuple)):
            places.append([_append(values, item) for item in value])
        else:
            places.append(_append(values, value))

    def rebuild(others: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for value, place in zip(others_than_tensors, places):
            if isinstance(place, list):
                found.append([None if p is None else others[p] for p in place])
            else:
                found.append(value if place is None else others[place])
        return found

    return values, rebuild


def _append(values: list[Any], value: Any) -> int | None:
    if value is None:
        return None
    values.append(value)
    return len(values) - 1


def _metas(outputs: Sequence[tuple[list[int], str]]) -> Callable[..., Any]:
    made = tuple(MetaTensor(dtype=getattr(paddle, dtype), shape=shape) for shape, dtype in outputs)
    found = made[0] if len(made) == 1 else made
    return lambda *_: found


def _runner(
    operator: Operator, rebuild: Callable, found: Sequence[Any], use: str | None
) -> Callable[..., Any]:
    """Calls the C entry, in the executor's thread: no gradient, AMP or scope there but the graph's own."""
    names = operator.names[operator.count :]
    unwanted = {name: False for name, what in zip(names, found) if what is None}
    positional, keywords, function = operator.positional, operator.keywords, operator.function

    def run(*tensors: Any) -> Any:
        inputs = rebuild([t if t.is_contiguous() else t.contiguous() for t in tensors])
        named = dict(zip(keywords, inputs[positional:]))
        with resumed(use):
            results = core.call_below_dispatcher(
                function, tuple(inputs[:positional]), {**named, **unwanted}
            )
        if isinstance(results, tuple):
            return tuple(result for result in results if result is not None)
        return results

    return run
