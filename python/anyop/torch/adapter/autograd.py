# SPDX-License-Identifier: Apache-2.0
"""Gradients of torch.ops.<namespace>.<op>: the kernel that torch's dispatcher runs at its Autograd keys.

torch.library.register_autograd is not used: its Function is refused inside torch.func.grad. A Python kernel at the
Autograd key costs some 4.5 us a call, also of plain tensors; where the C++ half handles those itself, it defines the
overloads `autograd` and `out_autograd`, before the first of the others, which it calls for these: their kernels are
those of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from anyop import _scope
from anyop._load import core
from anyop.adapter.gradient import Gradient, name_called
from anyop.native.glues import torch_glue
from anyop.torch.adapter.forward_mode import ForwardMode, is_active
from anyop.torch.adapter.gradient import gradients, requires
from anyop.torch.adapter.operators import Operator

Run = Callable[[Sequence[Any]], Any]
# (runs the operator below autograd, its arguments, the scope of the call) -> results
Rule = Callable[[Run, list[Any], "str | None"], Any]


_libraries: dict[str, torch.library.Library] = {}  # of operators by name
_defined: set[tuple[str, str]] = set()  # overloads of their own that have their kernel
_lock = Lock()


def install(operator: Operator, library: torch.library.Library) -> None:
    """Register the kernels of both overloads, unless the C++ half asks for them by `define`."""
    if core.torch_problem(operator.name) or torch_glue.load() is None:
        _bump_versions(operator, library)
        _register(operator, "", library)
        if operator.out is not None:
            _register(operator, "out", library)
    else:
        _libraries[operator.name] = library


def define(name: str, destination: int) -> bool:
    """Give the overload with which the C++ half records its kernel, once; where it cannot be, the error is kept."""
    try:
        operator = gradients.operators[name]
        own = f"{operator.short}.{'out_' if destination else ''}autograd"
        with _lock:
            if (name, own) not in _defined:
                _register(operator, "out" if destination else "", _libraries[name], own)
                _defined.add((name, own))
        return True
    except BaseException as error:
        core.keep_torch_error(error)
        return False


def _rule(operator: Operator, overload: str) -> Rule | None:
    """None: only integers come out, so there is nothing to differentiate."""
    how = gradients.of(operator.name)
    differentiable = operator.mutated or _has_floating_result(operator)
    if isinstance(how, Gradient) or differentiable:
        if overload:
            return _refused_out(operator)
        if isinstance(how, Gradient):
            return _recorded(how) if how.forward is operator else _by_way(operator, how)
        return _once(operator) if gradients.is_backward(operator.name) else _refused(operator, how)
    return None


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Function.apply without its check for functorch, whose levels the dispatcher has peeled off already."""
    apply = super(torch.autograd.Function, function).apply

    def apply_at_one_level(*args: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():
            return apply(*args)
        with enable_single_level_autograd_function():
            return apply(*args)

    return apply_at_one_level


# ---- registration ----


def _register(
    operator: Operator, overload: str, library: torch.library.Library, own: str = ""
) -> None:
    """At an overload of its own, which the C++ half calls, else at the Autograd key."""
    rule = _rule(operator, overload)
    op = getattr(operator.packet, overload or "default")
    forward_mode = ForwardMode(operator, gradients.operators)
    if own:
        call = _own_overload(operator, rule, op, forward_mode)
        library.impl(own, call, "CompositeImplicitAutograd")
    elif rule is not None:
        name = f"{operator.short}.{overload}" if overload else operator.short
        kernel = _autograd_kernel(operator, rule, op, forward_mode)
        library.impl(name, kernel, "Autograd", with_keyset=True)


def _own_overload(
    operator: Operator, rule: Rule | None, op: Any, forward_mode: ForwardMode
) -> Callable[..., Any]:
    def run(args: tuple, kwargs: dict[str, Any]) -> Any:
        return _start(operator, rule, op, args, kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if rule is not None and is_active():
                return forward_mode.call(run, args, kwargs)
            return run(args, kwargs)
        except BaseException as error:  # torch's C shim, above, would lose it
            core.keep_torch_error(error)
            raise

    return call


def _autograd_kernel(
    operator: Operator, rule: Rule, op: Any, forward_mode: ForwardMode
) -> Callable[..., Any]:
    def kernel(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        below = keyset & torch._C._after_autograd_keyset

        def run(args: tuple, kwargs: dict[str, Any]) -> Any:
            return _start(operator, rule, partial(op.redispatch, below), args, kwargs)

        return forward_mode.call(run, args, kwargs) if is_active() else run(args, kwargs)

    return kernel


def _bump_versions(operator: Operator, library: torch.library.Library) -> None:
    """Tell autograd what is written, as the C++ half does with the glue."""
    if core.torch_problem(operator.name):
        return  # a Python kernel calls anyop.<op>, which does it
    written = {"": [operator.names[at] for at in operator.mutated]}
    if operator.out is not None:
        written["out"] = [*written[""], *operator.names[operator.count :]]
    for overload, names in written.items():
        if not names:
            continue
        op = getattr(operator.packet, overload or "default")

        def kernel(keyset: Any, *args: Any, op: Any = op, names: Any = names, **kwargs: Any) -> Any:
            values = dict(zip(operator.names, args)) | kwargs
            for value in (values.get(name) for name in names):
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if tensor is not None:
                        torch.autograd.graph.increment_version(tensor)
            with torch._C._AutoDispatchBelowADInplaceOrView():
                below = keyset & torch._C._after_ADInplaceOrView_keyset
                return op.redispatch(below, *args, **kwargs)

        name = f"{operator.short}.{overload}" if overload else operator.short
        library.impl(name, kernel, "ADInplaceOrView", with_keyset=True)


def _start(operator: Operator, rule: Rule | None, op: Callable, args: tuple, kwargs: dict) -> Any:
    def run(inputs: Sequence[Any]) -> Any:
        """The call with these inputs in place of those that were given."""
        positional = inputs[: min(len(args), operator.count)]
        named = {name: inputs[operator.index[name]] for name in kwargs if name in operator.keywords}
        with _levels_below_record(), torch._C._AutoDispatchBelowAutograd():
            return op(*positional, *args[operator.count :], **{**kwargs, **named})

    if rule is None or not requires((*args, *kwargs.values())):
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)
    return rule(run, operator.fill(args, kwargs), operator.scope(kwargs))


@contextmanager
def _levels_below_record() -> Iterator[None]:
    """Function.apply turns recording off; functorch's outer levels would then lose their gradients."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


# ---- rules ----


def _recorded(gradient: Gradient) -> Rule:
    """The operator as a node of the graph whose backward is its backward operator."""

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, run: Run, use: str | None, *inputs: Any) -> Any:
            found = run(inputs)
            results = found if isinstance(found, tuple) else (found,)
            saved = [inputs[at] for at in gradient.saved_inputs]
            saved += [results[at] for at in gradient.saved_results]
            ctx.save_for_backward(*saved)
            ctx.kept, ctx.use = gradient.keep(inputs), use
            ctx.scope = _scope.now() if use is None else use
            without = [results[at] for at in gradient.no_grads if results[at] is not None]
            ctx.mark_non_differentiable(*without)
            if gradient.takes_none:
                ctx.set_materialize_grads(False)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            needed = ctx.needs_input_grad[2:]
            given = tuple(grads[at] for at in gradient.grads)
            arguments = gradient.arguments(given, ctx.saved_tensors, ctx.kept)
            with _scope.resumed(ctx.scope):
                found = gradient.backward.call(arguments, gradient.mask(needed), ctx.use)
            return None, None, *gradient.place(found, len(needed))

    Recorded.__name__ = Recorded.__qualname__ = f"{gradient.forward.name}_gradient"
    apply = apply_of(Recorded)

    def rule(run: Run, inputs: list[Any], use: str | None) -> Any:
        refuse_inputs(gradient, inputs, gradient.forward.name)
        return apply(run, use, *inputs)

    return rule


def _by_way(operator: Operator, gradient: Gradient) -> Rule:
    """Another operator runs instead, whose gradient is recorded; its first results are the operator's."""
    other, count = gradients.operators[gradient.forward.name], len(operator.results)

    def rule(run: Run, inputs: list[Any], use: str | None) -> Any:
        refuse_inputs(gradient, inputs, operator.name)
        try:
            found = other.call(inputs, use=use)
        except Exception as error:
            name_called(error, other, operator)
            raise
        return found[0] if count == 1 else found[:count]

    return rule


def _once(operator: Operator) -> Rule:
    """A backward operator without a gradient of its own: an error once that is asked for."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, run: Run, *inputs: Any) -> Any:
            return run(inputs)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise NotImplementedError(
                f"{operator.name}: has no gradient, so its operator can be differentiated once, not twice"
            )

    Once.__name__ = Once.__qualname__ = f"{operator.name}_once"
    apply = apply_of(Once)
    return lambda run, inputs, use: apply(run, *inputs)


def _refused(operator: Operator, why: str) -> Rule:
    """An operator without a gradient: an error, so that none is lost silently."""

    def rule(run: Run, inputs: list[Any], use: str | None) -> Any:
        refuse_leaf(operator, inputs)
        found = [operator.names[at] for at in operator.tensors if requires((inputs[at],))]
        names = f"{found[0]} requires one" if found else "an argument requires one"
        raise NotImplementedError(
            f"{operator.name}: {why}, and {names}; use torch.no_grad() or .detach()"
        )

    return rule


def _refused_out(operator: Operator) -> Rule:
    """Answer in torch's own words to out= where a gradient would be recorded."""

    def rule(run: Run, inputs: list[Any], use: str | None) -> Any:
        raise out_error(operator)

    return rule


def out_error(operator: Operator) -> RuntimeError:
    """In torch's words."""
    return RuntimeError(
        f"{operator.short}(): functions with out=... arguments don't support automatic "
        "differentiation, but one of the arguments requires grad."
    )


def refuse_leaf(operator: Operator, inputs: Sequence[Any]) -> None:
    """Answer in torch's own words where a leaf would be written."""
    for at in operator.mutated:
        value = inputs[at]
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if tensor is not None and tensor.requires_grad and tensor.is_leaf:
                raise RuntimeError(
                    f"{operator.name}: {operator.names[at]}: a leaf Variable that requires grad is being used "
                    "in an in-place operation."
                )


def refuse_inputs(gradient: Gradient, inputs: Sequence[Any], called: str) -> None:
    """An error for an input that requires a gradient which the backward does not compute."""
    for at in gradient.refused:
        if requires((inputs[at],)):
            name = gradient.forward.names[at]
            raise NotImplementedError(
                f"{called}: {name} requires a gradient, which the operator does not "
                f"compute; use {name}.detach()"
            )


def _has_floating_result(operator: Operator) -> bool:
    return any(
        "float" in name or "complex" in name
        for p in operator.results
        for name in p["possible_dtypes"]
    )
