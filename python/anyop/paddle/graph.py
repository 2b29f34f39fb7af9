# SPDX-License-Identifier: Apache-2.0
"""anyop.<op> on values of a static graph (PIR): to_static(full_graph=True), SOT and paddle.static programs.

Shapes come from the schema, with -1 for what is known only when the graph runs. A call becomes one node; where a value
wants a gradient it is the forward block of a static_pylayer, whose backward is a node of the backward operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle.jit.dy2static.parameter_recorder import _global_parameter_recorder, _program_hash
from paddle.jit.dy2static.py_layer import StaticPyLayerContext
from paddle.pir.core import _convert_into_value, default_main_program
from paddle.static.nn import static_pylayer

from anyop._scope import now
from anyop.adapter.check import Check
from anyop.adapter.gradient import Gradient, can_require, picker
from anyop.adapter.operators import Operator
from anyop.paddle import node
from anyop.paddle.framework import FRAMEWORK
from anyop.paddle.refusals import no_gradient, refuse_inputs, wants_gradient
from anyop.paddle.sizes import UNKNOWN


def call(operator: Operator, how: Gradient | str, inputs: list[Any], results: Sequence[Any]) -> Any:
    """The results as values; None for those that are not wanted."""
    _refuse(operator, results)
    unwanted = {
        param["name"] for param, result in zip(operator.results, results) if result is False
    }
    for at in operator.tensors:
        inputs[at] = _values(operator, at, inputs[at])
    other = how.forward if isinstance(how, Gradient) else operator
    if other is not operator and any(wants_gradient(inputs[at]) for at in operator.tensors):
        made = call(other, how, inputs, [None] * len(other.results))
        return made[0] if len(results) == 1 else made[: len(results)]
    found = _infer(operator, inputs, unwanted)
    if any(wants_gradient(inputs[at]) for at in operator.tensors):
        made = _differentiated(operator, how, inputs, unwanted, found)
    else:
        made = _build(operator, inputs, found, now())
    return made[0] if len(made) == 1 else tuple(made)


Found = list[tuple[list[int], str] | None]  # shape and dtype of each result; None: not wanted


def _infer(operator: Operator, inputs: Sequence[Any], unwanted: set[str]) -> Found:
    """What the core would make, from what is known now; ValueError and TypeError as the core's."""
    check = Check(operator, inputs)
    found: Found = []
    for param in operator.results:
        if param["name"] in unwanted:
            found.append(None)
            continue
        shape, dtype = check.result(param)
        found.append(([-1 if size is UNKNOWN else size for size in shape], dtype))
    return found


def _build(operator: Operator, inputs: Sequence[Any], found: Found, use: str | None) -> list[Any]:
    """One node; its results at their places."""
    made = iter(node.make(operator, inputs, found, use))
    return [None if what is None else next(made) for what in found]


def _differentiated(
    operator: Operator,
    how: Gradient | str,
    inputs: list[Any],
    unwanted: set[str],
    found: Found,
) -> list[Any]:
    """The node inside a static_pylayer. What cannot be differentiated is an error once a gradient is asked for."""
    context, use = StaticPyLayerContext(), now()
    values, rebuild = node.flatten(operator, inputs)
    different, places = _different(values)
    wanted = [at for at, what in enumerate(found) if what is not None]

    def forward(*values: Any) -> Any:
        inside = rebuild([values[place] for place in places])
        made = _build(operator, inside, found, use)
        if isinstance(how, Gradient):
            saved = picker(how.saved_inputs)(inside)
            context.save_for_backward(*saved, *(made[at] for at in how.saved_results))
        return [made[at] for at in wanted]

    def backward(*grads: Any) -> Any:
        if not isinstance(how, Gradient):
            raise no_gradient(operator, how, inputs)
        refuse_inputs(how, inputs, operator.name)
        by_result: list[Any] = [None] * len(found)
        for at, grad in zip(wanted, grads):
            by_result[at] = grad
        grads_in = picker(how.grads)(by_result)
        found_grads = _backward(how, inputs, grads_in, tuple(context.saved_tensor()), use)
        return _sums(found_grads, places, len(different))

    if unwanted and isinstance(how, Gradient):
        raise NotImplementedError(
            f"{operator.name}: a gradient with results that are not wanted is not offered in a static graph"
        )
    made = static_pylayer(forward, different, backward)
    made = made if isinstance(made, (list, tuple)) else [made]
    results: list[Any] = [None] * len(found)
    for at, value in zip(wanted, made):
        value.stop_gradient = not can_require(operator.results[at])
        results[at] = value
    return results


def _backward(
    how: Gradient, inputs: Sequence[Any], grads: tuple, saved: tuple, use: str | None
) -> tuple:
    """One gradient for each value among the inputs, None where it is not wanted."""
    back = how.backward
    kept = how.keep(inputs)
    for letter, size in zip(how.letters, kept[len(how.kept) :]):
        if size is UNKNOWN or size < 0:
            raise NotImplementedError(
                f"{how.forward.name}: the gradient needs the size {letter}, which is not known in this graph; "
                "give it in the InputSpec"
            )
    arguments = list(how.arguments(grads, saved, kept))
    names = [param["name"] for param in back.results]
    mask = how.mask([at in how.inputs and wants_gradient(value) for at, value in enumerate(inputs)])
    unwanted = {
        name
        for bit, (name, param) in enumerate(zip(names, back.results))
        if param["optional"] and not mask >> bit & 1
    }
    found = _infer(back, arguments, unwanted)
    for at, bit in how.inputs.items():  # Paddle wants exactly the shape that the input has
        if found[bit] is not None and inputs[at] is not None:
            found[bit] = (list(inputs[at].shape), found[bit][1])
    made = _build(back, arguments, found, use)
    by_place = {at: made[bit] for at, bit in how.inputs.items()}
    gradients = []
    for at in how.forward.tensors:
        items = inputs[at] if isinstance(inputs[at], (list, tuple)) else [inputs[at]]
        for value in items:
            if value is not None:
                gradients.append(by_place.get(at) if wants_gradient(value) else None)
    return tuple(gradients)


def _different(values: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Every value once, for which static_pylayer asks, and where each of the given ones is among them."""
    different: list[Any] = []
    places = []
    for value in values:
        same = [at for at, other in enumerate(different) if other.is_same(value)]
        places.append(same[0] if same else len(different))
        if not same:
            different.append(value)
    return different, places


def _sums(grads: Sequence[Any], places: Sequence[int], count: int) -> tuple:
    """The gradient of each different value: the sum of those of its places."""
    sums: list[Any] = [None] * count
    for grad, place in zip(grads, places):
        if grad is not None:
            sums[place] = grad if sums[place] is None else sums[place] + grad
    return tuple(sums)


def _values(operator: Operator, at: int, value: Any) -> Any:
    """Eager tensors that a graph meets become its inputs, as Paddle's own operators do it."""
    if isinstance(value, (list, tuple)):
        return [_values(operator, at, item) for item in value]
    if isinstance(value, paddle.Tensor):
        value = _converted(operator, at, value)
    if isinstance(value, paddle.pir.Value):
        _refuse_wrong(operator, at, value)
    return value


def _converted(operator: Operator, at: int, tensor: paddle.Tensor) -> Any:
    what = f"{operator.name}: {operator.names[at]} is an eager tensor"
    try:
        return _convert_into_value(tensor)
    except TypeError as error:
        raise TypeError(
            f"{what} of {FRAMEWORK.dtype_name(tensor)}, which Paddle takes into no static graph"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{what} that Paddle cannot make a parameter named {tensor.name!r} of this program: a name of its own "
            "may help (x.name = ...)"
        ) from error


def _refuse_wrong(operator: Operator, at: int, value: Any) -> None:
    """ValueError for values that Paddle takes, and then reads another value or ends the process."""
    made_by, program = value.get_defining_op(), default_main_program()
    if made_by is None:  # an argument of a block
        return
    what = f"{operator.name}: {operator.names[at]} is"
    if made_by.get_parent_block().program != program:
        raise ValueError(
            f"{what} a value of another program than the one that is being made (paddle.static.program_guard)"
        )
    if made_by.name() == "builtin.parameter":  # found by its name when the graph runs
        known = _global_parameter_recorder.params_dict.get(_program_hash(program), ())
        if sum(tensor.name == value.name for tensor in known) > 1:
            raise ValueError(
                f"{what} one of several tensors named {value.name!r}, for which Paddle takes the same one: give "
                "each a name of its own (x.name = ...)"
            )


def _refuse(operator: Operator, results: Sequence[Any]) -> None:
    """Nothing is written in place: a graph's values have no memory yet. False leaves out what is optional."""
    for param, value in zip(operator.results, results):
        if value is False and not param["optional"]:
            raise TypeError(f"{operator.name}: {param['name']} is a bool, expected a tensor")
    given = [
        param["name"]
        for param, value in zip(operator.results, results)
        if value is not None and value is not False
    ]
    changed = [operator.names[at] for at in operator.mutated]
    if given or changed:
        what = f"{given[0]} cannot be given" if given else f"{changed[0]} cannot be changed"
        raise NotImplementedError(
            f"{operator.name}: {what} in a static graph; call it in dynamic mode"
        )
