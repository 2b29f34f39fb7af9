# SPDX-License-Identifier: Apache-2.0
"""Bad torch tensors: those whose memory is not their value, whose gradient would be lost, or that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anyop.testing.dtype_choices import dtype_choices, is_floating
from anyop.testing.places import tensors_of
from anyop.testing.refusal import Good, Refusal, refuses
from anyop.testing.subject import Subject

_TYPE = (TypeError,)


def torch_missing() -> str | None:
    """Why nothing of torch's can be tried; None when it can."""
    try:
        import torch
    except ImportError as error:
        return f"torch is not installed: {error}"
    return (
        None if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else "torch is older than 2.10"
    )


def to_torch(value: Any) -> Any:
    """A torch tensor of the same values; lists element by element."""
    import torch

    if isinstance(value, list):
        return [to_torch(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    name = value.dtype.name
    if value.dtype.isbuiltin != 1:  # of ml_dtypes
        bits = np.ascontiguousarray(value).view(f"u{value.itemsize}")
        return torch.from_numpy(bits).clone().view(getattr(torch, name))
    return torch.from_numpy(np.array(value)).clone()  # aligned as torch aligns


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


def _first_floats(subject: Subject) -> bool:
    """Whether a tensor of the first combination of dtypes is floating."""
    names = dtype_choices(subject.metadata)[0].names
    return any(dtype and is_floating(dtype) for dtype in names.values())


@refuses("torch: gradient", "types", _first_floats)
def gradient(good: Good) -> Iterator[Refusal]:
    """A gradient that the call would lose."""
    yield from _refusals(good, "torch: gradient", lambda t: t.requires_grad_(), floating=True)
    yield from _refusals(good, "torch: gradient", lambda t: t.requires_grad_() * 1, floating=True)


@refuses("torch: lazy negative", "types", _first_floats)
def negative(good: Good) -> Iterator[Refusal]:
    """The imaginary part of a conjugate is stored without its sign."""
    import torch

    def change(t):
        if t.dtype not in (torch.float32, torch.float64):
            return None
        bad = torch.complex(torch.zeros_like(t), t).conj().imag
        return bad if bad.is_neg() else None

    yield from _refusals(good, "torch: lazy negative", change, floating=True)


@refuses("torch: meta", "types")
def meta(good: Good) -> Iterator[Refusal]:
    """A tensor without memory."""
    yield from _refusals(good, "torch: meta", lambda t: t.to("meta"))


@refuses("torch: sparse", "types")
def sparse(good: Good) -> Iterator[Refusal]:
    """A tensor without strides."""

    def change(t):
        return t.to_sparse() if t.ndim else None

    yield from _refusals(good, "torch: sparse", change)


@refuses("torch: fake", "types")
def fake(good: Good) -> Iterator[Refusal]:
    """A FakeTensor."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        pass
    yield from _refusals(good, "torch: fake", mode.from_tensor)


@refuses("torch: subclass", "types")
def subclass(good: Good) -> Iterator[Refusal]:
    """A subclass that may mean something else by its memory."""
    import torch

    class Other(torch.Tensor):
        pass

    yield from _refusals(good, "torch: subclass", lambda t: t.as_subclass(Other))


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


@refuses("torch: mode", "types")
def mode(good: Good) -> Iterator[Refusal]:
    """Plain tensors while a dispatch mode wants to see every call."""
    if torch_missing():
        return
    from torch._subclasses import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    first = next(p["name"] for p in good.subject.tensors)
    for label, context in (("FakeTensorMode", FakeTensorMode), ("a mode of one's own", Watch)):
        call = _call(torch_arguments(good))
        yield Refusal("torch: mode", first, label, _TYPE, {}, call=call, context=context)


@refuses("torch: function transform", "types")
def transform(good: Good) -> Iterator[Refusal]:
    """Inside vmap, grad and functionalize a tensor is a wrapper."""
    import torch

    for name, tensor, is_result in _places(good):
        arguments = torch_arguments(good)

        def inside(function, name=name, arguments=arguments):
            return lambda t: function(**_with(arguments, name, t))

        def by_vmap(function, tensor=tensor, inside=inside):
            return torch.func.vmap(inside(function))(tensor[None])

        def by_functionalize(function, tensor=tensor, inside=inside):
            return torch.func.functionalize(inside(function))(tensor)

        def by_grad(function, tensor=tensor, inside=inside):
            return torch.func.vjp(inside(function), tensor)

        kind, more = "torch: function transform", " (result)" if is_result else ""
        yield Refusal(kind, name, f"vmap of {name}{more}", _TYPE, {}, call=by_vmap)
        wrapped = f"functionalize of {name}{more}"  # a wrapper whose memory is NULL
        yield Refusal(kind, name, wrapped, (TypeError, ValueError), {}, call=by_functionalize)
        if tensor.is_floating_point():
            yield Refusal(kind, name, f"vjp of {name}{more}", _TYPE, {}, call=by_grad)


@refuses("torch: forward gradient", "types", _first_floats)
def forward_gradient(good: Good) -> Iterator[Refusal]:
    """A tangent that the call would lose."""
    import torch

    names = tuple(param["name"] for param in good.subject.tensors)  # the first notices for all
    for name, tensor, is_result in _places(good, floating=True):
        if is_result or tensor.dtype not in (torch.float32, torch.float64):
            continue

        def call(function, name=name, tensor=tensor):
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(tensor, torch.ones_like(tensor))
                return function(**torch_arguments(good, **{name: dual}))

        yield Refusal("torch: forward gradient", names, name, _TYPE, {}, call=call)


def _several(s: Subject) -> bool:
    return len(s.tensors) + len(s.results) > 1


@refuses("two frameworks", "types", _several)
def two_frameworks(good: Good) -> Iterator[Refusal]:
    """One tensor of torch among NumPy's, and the other way round."""
    if torch_missing():
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
