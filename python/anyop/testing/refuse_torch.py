# SPDX-License-Identifier: Apache-2.0
"""Bad torch tensors: those that have no plain memory, or whose gradient would be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import anyop
from anyop.cases.callers import to_torch
from anyop.cases.dtype_choices import dtype_choices, is_floating
from anyop.cases.subject import Subject
from anyop.testing.places import tensors_of
from anyop.testing.refusal import Good, Refusal, refuses, several

_TYPE = (TypeError,)


def torch_missing() -> str | None:
    """Why nothing of torch's can be tried; None when it can."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return f"torch is not installed: {error}"
    return None


def torch_arguments(good: Good, **changes: Any) -> dict[str, Any]:
    """The good arguments as torch tensors, with some replaced; of a list the last element."""
    arguments = {name: to_torch(value) for name, value in good.arguments().items()}
    for name, value in changes.items():
        arguments = _with(arguments, name, value)
    return arguments


def _with(arguments: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    before = arguments.get(name)
    return {**arguments, name: [*before[:-1], value] if isinstance(before, list) else value}


def _places(good: Good, floating: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """(name, tensor, is a result) of each place where a tensor stands."""
    if torch_missing():
        return
    for param, shape, dtype, is_result in tensors_of(good):
        name = "bool" if dtype.kind == "b" else dtype.name
        if not floating or is_floating(name):
            yield param["name"], to_torch(np.ones(shape, dtype)), is_result


def _refusals(good: Good, kind: str, change: Callable, floating: bool = False, **more: Any):
    """One refusal for each place; change makes the bad tensor of a good one, or None where it cannot."""
    for name, tensor, is_result in _places(good, floating):
        bad = change(tensor)
        if bad is not None:
            arguments = torch_arguments(good, **{name: bad})
            call = _call(arguments)
            label = f"{name}" + (" (result)" if is_result else "")
            yield Refusal(kind, name, label, _TYPE, {}, call=call, **more)


def _call(arguments: dict[str, Any]) -> Callable:
    return lambda function: function(**arguments)


def _is_not_in_torch(subject: Subject) -> bool:
    """Whether torch could not take the operator: its grammar has no defaults of lists of text, for one."""
    import anyop.torch  # noqa: F401  registers
    from anyop._load import core

    return core.torch_problem(subject.name) is not None


def _first_floats(subject: Subject) -> bool:
    """Whether a tensor of the first combination of dtypes is floating."""
    names = dtype_choices(subject.metadata)[0].names
    return any(dtype and is_floating(dtype) for dtype in names.values())


def _lacks_gradient(subject: Subject) -> bool:
    """Whether floats go in and come out, and it is neither differentiable nor the gradient of another operator.

    A gradient may be differentiated: only what comes of that is an error. Where only integers come out, there is no
    gradient to lose.
    """
    metadata = [anyop.metadata(name) for name in anyop.list_ops()]
    gradients = {entry["backward"]["name"] for entry in metadata if entry["backward"]}
    gives = [is_floating(n) for param in subject.results for n in param["possible_dtypes"]]
    has_gradient = subject.metadata["backward"] or subject.metadata["name"] in gradients
    return _first_floats(subject) and any(gives) and not has_gradient


@refuses("torch: no gradient", "types", _lacks_gradient)
def no_gradient(good: Good) -> Iterator[Refusal]:
    """A gradient that nobody could compute."""
    if not _lacks_gradient(good.subject):
        return
    for refusal in _refusals(
        good, "torch: no gradient", lambda t: t.requires_grad_(), floating=True
    ):
        written = refusal.argument in good.subject.metadata["mutated"]  # a leaf is not written
        refusal.errors = (RuntimeError if written else NotImplementedError,)
        if not refusal.label.endswith("(result)"):
            yield refusal


def _gives_integers(subject: Subject) -> bool:
    """Whether no result can have a gradient, as of argmax."""
    names = dtype_choices(subject.metadata)[0].names
    results = [names.get(p["name"]) or "" for p in subject.results]
    return bool(results) and not any(is_floating(name) for name in results)


def _is_given_whole(subject: Subject) -> bool:
    """Whether floats are taken and given, and no result is optional."""
    optional = any(param["optional"] for param in subject.results)
    return _first_floats(subject) and not optional and not _gives_integers(subject)


@refuses("torch: gradient of a result", "types", _is_given_whole)
def gradient_of_result(good: Good) -> Iterator[Refusal]:
    """A given result that requires a gradient, or takes one from an argument: torch's own error."""
    import torch

    outputs = {name: to_torch(placed.array) for name, placed in good.outputs().items()}
    if not _is_given_whole(good.subject):
        return
    for name, tensor, is_result in _places(good, floating=True):
        bad = {**outputs, name: tensor.requires_grad_()}

        def call(function, bad=bad):
            with torch.enable_grad():
                return function(**torch_arguments(good, **bad))

        label = name + (" (result)" if is_result else "")
        kind = "torch: gradient of a result"
        errors = (RuntimeError, NotImplementedError)
        yield Refusal(kind, None, label, errors, {}, call=call, is_torchs=True)


@refuses("torch: sparse", "types")
def sparse(good: Good) -> Iterator[Refusal]:
    """A tensor without strides."""

    def change(t):
        try:
            return t.to_sparse() if t.ndim else None
        except NotImplementedError:  # of 8-bit floats torch has none on the CPU
            return None

    for refusal in _refusals(good, "torch: sparse", change):
        if _is_not_in_torch(good.subject):
            refusal.errors, refusal.is_torchs = (NotImplementedError,), True
        yield refusal


@refuses("torch: meta", "types", lambda s: len(s.tensors) > 1)
def meta(good: Good) -> Iterator[Refusal]:
    """A tensor without memory among others."""
    if len(good.subject.tensors) < 2:
        return
    for refusal in _refusals(good, "torch: meta", lambda t: t.to("meta")):
        # TypeError: of an optional list, by whose device torch does not choose a kernel.
        refusal.errors = (ValueError, NotImplementedError, RuntimeError, TypeError)
        refusal.is_torchs = True
        yield refusal


@refuses("torch: emptied storage", "alignment")
def emptied(good: Good) -> Iterator[Refusal]:
    """Storage that was given back, as FSDP does."""

    def change(t):
        t = t.clone()
        t.untyped_storage().resize_(0)
        return t

    for refusal in _refusals(good, "torch: emptied storage", change):
        refusal.errors = (ValueError,)
        yield refusal


def _lacks_tangents(subject: Subject) -> bool:
    """Whether a floating argument has no formula in [tangent]."""
    names = dtype_choices(subject.metadata)[0].names
    known = subject.metadata["tangent"] or {}
    floats = [p["name"] for p in subject.tensors if is_floating(names.get(p["name"]) or "")]
    return any(name not in known for name in floats) and not _gives_integers(subject)


@refuses("torch: forward gradient", "types", _lacks_tangents)
def forward_gradient(good: Good) -> Iterator[Refusal]:
    """A tangent that the call would lose."""
    import torch

    known = good.subject.metadata["tangent"] or {}
    if not _lacks_tangents(good.subject):
        return
    for name, tensor, is_result in _places(good, floating=True):
        if is_result or name in known or tensor.dtype not in (torch.float32, torch.float64):
            continue

        def call(function, name=name, tensor=tensor):
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(tensor, torch.ones_like(tensor))
                return function(**torch_arguments(good, **{name: dual}))

        errors = (NotImplementedError,)
        yield Refusal("torch: forward gradient", None, name, errors, {}, call=call)


@refuses("two frameworks", "types", several)
def two_frameworks(good: Good) -> Iterator[Refusal]:
    """One tensor of torch among NumPy's, and the other way round."""
    if torch_missing() or not several(good.subject):
        return
    names = tuple(p["name"] for p in good.subject.tensors + good.subject.results)
    for name, tensor, is_result in _places(good):
        changed = {name: tensor}
        if len(good.subject.tensors) == 1 and not is_result:
            changed |= {n: placed.array for n, placed in good.outputs().items()}
        call = _call(good.with_arrays(changed))
        label = f"{name} of torch among arrays"
        yield Refusal("two frameworks", names, label, _TYPE, {}, call=call)
        numpy = good.arguments() | {n: p.array for n, p in good.outputs().items()}
        others = {n: to_torch(p.array) for n, p in good.outputs().items()}
        array = numpy[name][-1] if isinstance(numpy[name], list) else numpy[name]
        call = _call(torch_arguments(good, **{**others, name: array}))
        label = f"{name} of NumPy among tensors"
        yield Refusal("two frameworks", names, label, _TYPE, {}, call=call)
