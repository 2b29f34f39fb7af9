# SPDX-License-Identifier: Apache-2.0
"""Gradients of anyop.<op> on plain tensors: an own autograd.Function around the C entry, without torch's dispatcher.

Everything that depends on the operator is decided at its first gradient; a call touches its arguments once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from anyop import _scope
from anyop.adapter.gradient import Gradient, picker
from anyop.torch.adapter.autograd import out_error, refuse_inputs
from anyop.torch.adapter.gradient import gradients
from anyop.torch.adapter.operators import Operator

Entry = Callable[[tuple, dict[str, Any]], Any]

entries: dict[str, Entry] = {}  # by the operator's name; what the C entry calls for a gradient


def install(operator: Operator, dispatched: Entry) -> None:
    """The entry of one operator is made at its first use; without a plain gradient that of the dispatcher."""

    def first(args: tuple, kwargs: dict[str, Any]) -> Any:
        how = gradients.of(operator.name)
        own = isinstance(how, Gradient) and how.forward is operator
        plain = own and not operator.has_optional_results
        entry = entries[operator.name] = _entry(operator, how) if plain else dispatched  # type: ignore[arg-type]
        return entry(args, kwargs)

    entries[operator.name] = first


def call_with_gradient(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """anyop.<name>(*args, **kwargs) for plain tensors of which some require a gradient."""
    return entries[name](args, kwargs)


def _entry(operator: Operator, gradient: Gradient) -> Entry:
    count, bind, names = operator.count, operator.bind, operator.names
    # Function.apply without its search for functorch's wrappers: plain tensors are none.
    apply = super(torch.autograd.Function, _function(operator, gradient)).apply
    refused = gradient.refused
    rests = [operator.rest(given) for given in range(count + 1)]

    def entry(args: tuple, kwargs: dict[str, Any]) -> Any:
        rest = rests[len(args)] if not kwargs and len(args) <= count else None
        if rest is not None:
            args = args + rest
        else:
            values = bind(args, kwargs)
            if any(value is not None for value in values[count:]):
                raise out_error(operator)
            args = tuple(values[:count])
        if refused:
            refuse_inputs(gradient, args, operator.name)
        return apply(*args)

    entry.__name__ = f"{names[0]}_entry"
    return entry


def _function(operator: Operator, gradient: Gradient) -> type[torch.autograd.Function]:
    """The Function of one operator; its arguments are all inputs in the schema's order."""
    run, save = operator.caller(), _saver(gradient)
    keep, arguments = gradient.keep, gradient.arguments
    if not gradient.made_like:  # the same without its loop
        pick, tidy = gradient.pick, gradient.tidy
        arguments = lambda grads, saved, kept: tidy(pick((*grads, *saved, *kept)))  # noqa: E731
    give, place = _giver(gradient), gradient.place
    run_back, now = _Callers(gradient), _scope.now
    grads_of, takes_none = picker(gradient.grads), gradient.takes_none

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            found = run(inputs)
            ctx.kept = keep(inputs), now()  # in one: torch's contexts take their time for each
            if takes_none:
                ctx.set_materialize_grads(False)
            save(ctx, inputs, found)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            needed = ctx.needs_input_grad
            kept, scope = ctx.kept
            values = arguments(grads_of(grads), ctx.saved_tensors, kept)
            if scope is not None or _scope.active:
                with _scope.resumed(scope):
                    found = run_back[needed](values)
            else:
                found = run_back[needed](values)
            return give(found) if give else place(found, len(needed))

    Recorded.__name__ = Recorded.__qualname__ = f"{operator.name}_gradient"
    return Recorded


def _saver(gradient: Gradient) -> Callable[[Any, Sequence[Any], Any], None]:
    """save_for_backward, and which results have no gradient."""
    inputs_of, without = picker(gradient.saved_inputs), gradient.no_grads
    if not gradient.saved_results and not without:
        return lambda ctx, inputs, found: ctx.save_for_backward(*inputs_of(inputs))

    def save(ctx: Any, inputs: Sequence[Any], found: Any) -> None:
        results = found if isinstance(found, tuple) else (found,)
        ctx.save_for_backward(*inputs_of(inputs), *(results[at] for at in gradient.saved_results))
        ctx.mark_non_differentiable(*(results[at] for at in without))

    return save


def _giver(gradient: Gradient) -> Callable[[Any], tuple] | None:
    """Puts the backward's results at the places of their inputs, where these come first and in order."""
    count, inputs = gradient.forward.count, gradient.inputs
    rest = (None,) * (count - len(inputs))
    if inputs != {at: at for at in range(len(inputs))}:
        return None
    if len(inputs) == 1:
        return lambda found: (found, *rest)
    return lambda found: found + rest


class _Callers(dict):
    """By needs_input_grad: what calls the backward for the results that are wanted then."""

    def __init__(self, gradient: Gradient) -> None:
        self.gradient = gradient

    def __missing__(self, needed: tuple[bool, ...]) -> Callable[[Sequence[Any]], Any]:
        back = self.gradient.backward
        mask = self.gradient.mask(needed)
        names = back.names[back.count :]
        self[needed] = back.caller([name for bit, name in enumerate(names) if not mask >> bit & 1])
        return self[needed]
