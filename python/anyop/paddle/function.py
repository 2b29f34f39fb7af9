# SPDX-License-Identifier: Apache-2.0
"""Gradients of anyop.<op> on eager tensors: an own PyLayer around the C entry.

Everything that depends on the operator is decided when it is installed; a call touches its arguments once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import paddle
from paddle.autograd import PyLayer

from anyop._scope import active, now, resumed
from anyop.adapter.gradient import Gradient, can_require, name_called, picker
from anyop.adapter.operators import Operator
from anyop.paddle import callers
from anyop.paddle.refusals import no_gradient, out_error, refuse_inputs

Entry = Callable[[tuple, dict[str, Any]], Any]

entries: dict[
    str, Entry
] = {}  # by the operator's name; for eager tensors of which some want a gradient


def install(operator: Operator, how: Gradient | str, is_backward: bool) -> None:
    """Make the entry of one operator for calls of which some tensor wants a gradient."""
    if isinstance(how, Gradient) and how.forward is not operator:
        entries[operator.name] = _by_way(operator, how.forward)
    elif isinstance(how, Gradient):
        entries[operator.name] = _entry(operator, _recorded(how), how)
    elif is_backward:
        entries[operator.name] = _entry(operator, _once(operator), None)
    else:
        entries[operator.name] = _without_gradient(operator, how)


def _entry(operator: Operator, layer: type[PyLayer], gradient: Gradient | None) -> Entry:
    count, bind, apply, name = operator.count, operator.bind, layer.apply, operator.name
    rests = [operator.rest(given) for given in range(count + 1)]
    refused = gradient is not None and gradient.refused
    is_single = len(operator.results) == 1
    floating = [at for at, p in enumerate(operator.results) if can_require(p)]
    integers = [at for at, p in enumerate(operator.results) if not can_require(p)]
    lists = [at for at in operator.tensors if operator.inputs[at]["list"]]

    def entry(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rest = rests[len(args)] if not kwargs and len(args) <= count else None
        unwanted: tuple[str, ...] = ()
        if rest is not None:
            args = (*args, *rest)
        else:
            values = bind(args, kwargs)
            unwanted = _unwanted(operator, values[count:])
            args = tuple(values[:count])
        if refused:
            refuse_inputs(gradient, args, operator.name)
        if lists:
            args = tuple(_Held(value) if at in lists else value for at, value in enumerate(args))
        passes = {"unwanted": unwanted, "done": False}  # PyLayer would look into a list
        found = apply(passes, *args)
        hook = partial(_refuse_second_pass, name, passes)
        if is_single:
            found._register_grad_hook(hook)
            return found
        for at in floating:
            if found[at] is not None:
                found[at]._register_grad_hook(hook)
        for at in integers:
            if found[at] is not None:
                found[at].stop_gradient = True
        return found

    return entry


def _by_way(operator: Operator, other: Operator) -> Entry:
    """Another operator runs instead, whose gradient is recorded; its first results are the operator's."""
    count, bind, results = operator.count, operator.bind, len(operator.results)
    positional, keywords = operator.positional, operator.keywords

    def entry(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = bind(args, kwargs)
        _unwanted(operator, values[count:])
        named = dict(zip(keywords, values[positional:count]))
        try:
            found = entries[other.name](tuple(values[:positional]), named)
        except Exception as error:
            name_called(error, other, operator)
            raise
        return found[0] if results == 1 else found[:results]

    return entry


def _refuse_second_pass(name: str, passes: dict, grad: Any) -> None:
    """A hook of the results, which runs before the PyLayer: passes says whether one is done.

    Paddle 3.3 frees a PyLayer in the first pass, retain_graph=True or not, and crashes in the second. paddle.grad runs
    copies, so it may come again.
    """
    if passes["done"]:
        raise RuntimeError(
            f"{name}: this Paddle frees a PyLayer in the first backward pass, even with retain_graph=True; "
            "use paddle.grad(..., retain_graph=True), or add the losses"
        )


class _Held:
    """A list of tensors that PyLayer shall not look into: its tensors have no gradient."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _unwanted(operator: Operator, results: Sequence[Any]) -> tuple[str, ...]:
    """Names of results that are False; an error for given ones."""
    if any(result is not None and result is not False for result in results):
        raise out_error(operator)
    names = operator.names[operator.count :]
    return tuple(name for name, result in zip(names, results) if result is False)


def _caller(operator: Operator) -> Callable[..., Any]:
    """Calls the C entry on all inputs, for the results that are wanted."""
    has_lists = any(param["kind"] == "Tensor" and param["list"] for param in operator.inputs)
    callers: dict[tuple[str, ...], Callable[..., Any]] = {}

    def call(inputs: Sequence[Any], unwanted: Sequence[str] = ()) -> Any:
        if has_lists:
            inputs = [value.value if type(value) is _Held else value for value in inputs]
        key = tuple(unwanted)
        if key not in callers:
            callers[key] = operator.caller(key)
        return callers[key](inputs)

    return call


def _recorded(gradient: Gradient) -> type[PyLayer]:
    """The PyLayer of one operator; its arguments are all inputs in the schema's order."""
    operator, back = gradient.forward, gradient.backward
    run, run_back, function = _caller(operator), _caller(back), operator.function
    is_plain = not operator.keywords and not any(
        operator.inputs[at]["list"] for at in operator.tensors
    )
    keep = gradient.keep if gradient.letters else picker(gradient.kept)
    inputs_of, results_of = picker(gradient.saved_inputs), picker(gradient.saved_results)
    saves_results, version, give = (
        bool(gradient.saved_results),
        _version_of(gradient),
        _Giver(gradient),
    )
    arguments, grads_of = gradient.arguments, picker(gradient.grads)
    tensors_of, stops = picker(operator.tensors), _stops(operator)
    unsaved = [at for at in gradient.inputs if at not in gradient.saved_inputs]

    def nodes_of(ctx: Any, saved: tuple, identities: Sequence[int]) -> dict[int, Any]:
        """Where the graph goes on behind each input. A hook's tensor has lost its place in it: not known then."""
        nodes = dict(zip(unsaved, ctx.nodes)) if unsaved else {}
        for at, tensor, identity in zip(gradient.saved_inputs, saved, identities):
            if tensor is not None and id(tensor) == identity:
                nodes[at] = tensor.grad_fn
        return {place: nodes.get(at) for place, at in enumerate(operator.tensors)}

    def forward(ctx: Any, passes: dict, *inputs: Any) -> Any:
        unwanted = passes["unwanted"]
        found = function(*inputs) if is_plain and not unwanted else run(inputs, unwanted)
        saved = inputs_of(inputs)
        if saves_results:
            saved += results_of(found if isinstance(found, tuple) else (found,))
        ctx.save_for_backward(*saved)
        if gradient.takes_none:
            ctx.set_materialize_grads(False)
        # Whether each tensor wants a gradient is asked now: Paddle goes by what it was in the forward pass.
        stopped = [*map(stops, tensors_of(inputs))]
        identities, versions = [*map(id, saved)], [*map(version, saved)]
        ctx.kept = identities, versions, keep(inputs), stopped, passes, now()
        if unsaved:
            ctx.nodes = [getattr(inputs[at], "grad_fn", None) for at in unsaved]
        return found

    def backward(ctx: Any, *grads: Any) -> Any:
        identities, versions, kept, stopped, passes, use = ctx.kept
        saved = tuple(ctx.saved_tensor())
        _refuse_changed(operator, saved, identities, versions)
        asked = callers.wanted_inputs()
        if asked is None:
            passes["done"] = True
        else:
            stopped = _stopped(asked, stopped, nodes_of(ctx, saved, identities))
        unwanted, place = give[tuple(stopped)]
        values = arguments(grads_of(grads), saved, kept)
        if use is None and not active:
            return place(run_back(values, unwanted))
        with resumed(use):
            return place(run_back(values, unwanted))

    return _layer(f"{operator.name}_gradient", forward, backward)


def _stopped(asked: Sequence[Any], stopped: Sequence[bool | None], nodes: dict[int, Any]) -> tuple:
    """stop_gradient of the tensors, and True where nothing that paddle.grad was asked for lies behind."""
    return tuple(
        True if stops is False and nodes[at] and not callers.leads_to(nodes[at], asked) else stops
        for at, stops in enumerate(stopped)
    )


def _layer(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> type[PyLayer]:
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(PyLayer)(name.replace(".", "_"), (PyLayer,), members)


def _stops(operator: Operator) -> Callable[[Any], bool | None]:
    """stop_gradient of an input; None for what is no tensor."""
    always = all(
        not operator.optional[at] and not operator.inputs[at]["list"] for at in operator.tensors
    )
    return attrgetter("stop_gradient") if always else lambda v: getattr(v, "stop_gradient", None)


def _version_of(gradient: Gradient) -> Callable[[Any], int]:
    """The version of what is saved, which may be an absent tensor."""
    optional = any(gradient.forward.optional[at] for at in gradient.saved_inputs)
    return _version if optional else paddle.Tensor._inplace_version


class _Giver(dict):
    """By stop_gradient of the tensors: the names of results that are not wanted, and what puts the others in order.

    PyLayer wants one gradient for each tensor, None where it stops.
    """

    def __init__(self, gradient: Gradient) -> None:
        self.gradient = gradient

    def __missing__(self, stopped: tuple) -> tuple[tuple[str, ...], Callable[[Any], tuple]]:
        how, back = self.gradient, self.gradient.backward
        tensors = how.forward.tensors
        needed = [at for at, stops in zip(tensors, stopped) if stops is False]
        names = back.names[back.count :]
        mask = how.mask([at in needed for at in range(how.forward.count)])
        skip = [name for bit, name in enumerate(names) if not mask >> bit & 1]
        slots = [at for at, stops in zip(tensors, stopped) if stops is not None]
        places = [how.inputs[at] if at in needed else None for at in slots]
        # Paddle adds to a gradient in place, so no two inputs get one tensor.
        again = [place is not None and place in places[:at] for at, place in enumerate(places)]

        def place(found: Any) -> tuple:
            found = found if isinstance(found, tuple) else (found,)
            given = (None if place is None else found[place] for place in places)
            return tuple(grad.clone() if is_again else grad for grad, is_again in zip(given, again))

        self[stopped] = (tuple(skip) if back.has_optional_results else (), place)
        return self[stopped]


def _once(operator: Operator) -> type[PyLayer]:
    """A backward operator without a gradient of its own: an error once that is asked for."""
    run = _caller(operator)

    def forward(ctx: Any, passes: dict, *inputs: Any) -> Any:
        ctx.passes = passes
        return run(inputs, passes["unwanted"])

    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.passes["done"] = True
        raise NotImplementedError(
            f"{operator.name}: has no gradient, so its operator can be differentiated once, not twice"
        )

    return _layer(f"{operator.name}_once", forward, backward)


def _without_gradient(operator: Operator, why: str) -> Entry:
    """An error, so that no gradient is lost silently; only integers have nothing to lose."""
    call = operator.function
    loses = operator.mutated or any(map(can_require, operator.results))

    def entry(args: tuple, kwargs: dict[str, Any]) -> Any:
        if loses:
            raise no_gradient(operator, why, operator.bind(args, kwargs))
        with paddle.no_grad():
            return call(*args, **kwargs)

    return entry


def _version(tensor: Any) -> int:
    return 0 if tensor is None else tensor._inplace_version()


def _refuse_changed(
    operator: Operator, saved: tuple, identities: Sequence[int], versions: Sequence[int]
) -> None:
    """PyLayer itself does not notice that a saved tensor was written since. Hooks may give another tensor."""
    for tensor, identity, version in zip(saved, identities, versions):
        if id(tensor) != identity or _version(tensor) == version:
            continue
        raise RuntimeError(
            f"{operator.name}: a tensor saved for its gradient has been modified by an inplace operation: its "
            f"version is {_version(tensor)}, the expected version is {version}"
        )
