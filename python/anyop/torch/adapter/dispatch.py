# SPDX-License-Identifier: Apache-2.0
"""Where a call of anyop.<op> goes when its tensors are not plain: to torch.ops, with the C function's call forms.

Modes, subclasses, functorch's transforms, fake tensors, conj and neg views, autocast and profilers are all torch's
dispatcher's to handle.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from anyop import _frameworks
from anyop.adapter.constants import numbers_replaced, stated_replaced, torch_number
from anyop.adapter.object_text import object_text
from anyop.torch.adapter import python_kernels
from anyop.torch.adapter.autograd import out_error
from anyop.torch.adapter.function import call_with_gradient, entries
from anyop.torch.adapter.gradient import requires
from anyop.torch.adapter.operators import Operator
from anyop.torch.adapter.scope import thread

_FAKE = torch._C._TorchDispatchModeKey.FAKE
dispatched: dict[str, Callable[[tuple, dict[str, Any]], Any]] = {}  # by the operator's name


def slow_call(verdict: str, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What the C function calls when it may not read the tensors' memory itself: "gradient" or "dispatch"."""
    if sys.modules.get("torch") is not torch or not dispatched:
        return _call_under_proxy(verdict, name, args, kwargs)
    if verdict == "gradient":
        return call_with_gradient(name, args, kwargs)
    return dispatched[name](args, kwargs)


def _call_under_proxy(verdict: str, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Paddle's proxy hides torch, whose own functions import parts of it; anyop.torch may have been for Paddle yet."""
    with _frameworks.no_proxy():
        if not dispatched:
            importlib.import_module("anyop.torch.adapter.install").install_all()
        if verdict == "gradient":
            return call_with_gradient(name, args, kwargs)
        return dispatched[name](args, kwargs)


def install(operator: Operator) -> Callable[[tuple, dict[str, Any]], Any]:
    """Make the entry of one operator."""

    def entry(args: tuple, kwargs: dict[str, Any]) -> Any:
        values = operator.bind(args, kwargs)
        if _is_faked(values) and (_is_given(operator, values) or any(map(_is_short, values))):
            # Before anything is written; torch cannot print a short one, and is left without autograd.
            _refuse_fake(operator, values)
        try:
            return _called(operator, values)
        except (AssertionError, RuntimeError):  # torch's, where fake tensors stand among others
            _refuse_fake(operator, values)
            raise

    dispatched[operator.name] = entry
    return entry


def refuse(name: str, why: str) -> None:
    """Make the entry of an operator that torch.ops could not take."""

    def entry(args: tuple, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError(
            f"{name}: is no operator of torch.ops here, because {why}; plain tensors without gradients are fine"
        )

    dispatched[name] = entries[name] = entry


def call(operator: Operator, args: tuple, kwargs: dict[str, Any]) -> Any:
    """anyop.<op>(*args, **kwargs) by way of torch.ops. torch.compile traces this function."""
    return _called(operator, operator.bind(args, kwargs))


def _called(operator: Operator, values: list[Any]) -> Any:
    inputs, results = values[: operator.count], values[operator.count :]
    if operator.promoted:
        numbers_replaced(operator.name, operator.names, operator.promoted, inputs, _number)
    if operator.numbers:
        stated_replaced(operator.name, operator.names, operator.numbers, inputs, _number)
    for at in range(operator.count):
        if operator.inputs[at]["kind"] == "Tensor":
            inputs[at] = _tensors(operator, at, inputs[at])
        else:
            inputs[at] = operator.convert(at, inputs[at])
    for param, place in zip(operator.results, results):
        if isinstance(place, torch.Tensor):
            _refuse_sparse(operator, param, place)
            _refuse_frozen(operator, param, place)
            _refuse_short(operator, param, place)
        elif place is not None and not (place is False and param["optional"]):
            raise _no_tensor(operator, param, place, "a torch.Tensor")
    use = thread.text  # said to torch.ops, so that a graph keeps it
    if use is not None:
        _refuse_graph(operator, use)
    given = [result for result in results if result is not None and result is not False]
    if not given:
        return operator.call(inputs, _mask(operator, results), use)
    if len(given) == len(results) and operator.out is not None and not any(map(_is_lazy, given)):
        operator.call_out(inputs, given, use)
        return given[0] if len(given) == 1 else tuple(given)
    return _copied(operator, inputs, results, use)


def _number(value: Any, like: Any, dtype: str) -> torch.Tensor | None:
    return torch_number(torch, value, like, dtype) if isinstance(like, torch.Tensor) else None


def _is_faked(values: list[Any]) -> bool:
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is not None and (
        fake.FakeTensor in map(type, values) or torch._C._get_dispatch_mode(_FAKE) is not None
    )


def _is_given(operator: Operator, values: list[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in values[operator.count :])


def _refuse_fake(operator: Operator, values: list[Any]) -> None:
    """TypeError that names a fake tensor and one that is none, or is of another mode; nothing where all are alike."""
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensor

    real: list[str] = []
    modes: dict[Any, str] = {}
    for name, value in zip(operator.names, values):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, FakeTensor):
                modes.setdefault(tensor.fake_mode, name)
            elif isinstance(tensor, torch.Tensor):
                real.append(name)
    fake = list(modes.values())
    if len(fake) > 1:
        raise TypeError(
            f"{operator.name}: {fake[0]} and {fake[1]} are FakeTensors of different modes, expected one mode"
        ) from None
    active = None if modes else detect_fake_mode()
    mode = next(iter(modes), active)
    if mode is None or not real or mode.allow_non_fake_inputs:
        return
    raise TypeError(
        f"{operator.name}: "
        + (
            f"{fake[0]} is a FakeTensor and {real[0]} is none, expected both alike: make it of {real[0]} too"
            if fake
            else f"{real[0]} is no FakeTensor where a FakeTensorMode is active: make one of it"
        )
        + " (FakeTensorMode.from_tensor)"
    ) from None


def _refuse_graph(operator: Operator, use: str) -> None:
    """An error where a graph would lose the scope of the call."""
    if not operator.takes_scope and torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{operator.name}: a graph cannot keep the scope {use!r}, because "
            + (
                "torch before 2.10 passes no text"
                if python_kernels.IS_OLD
                else "an argument is named use"
            )
        )


def _tensors(operator: Operator, at: int, value: Any) -> Any:
    """A tensor argument; TypeError for what is none."""
    param = operator.inputs[at]
    if value is None and operator.optional[at]:
        return None
    if param["list"]:
        if not isinstance(value, (list, tuple)):
            raise _no_tensor(operator, param, value, "a list of tensors")
        for item in value:
            if not isinstance(item, torch.Tensor) and not (
                item is None and param["optional_elements"]
            ):
                raise _no_tensor(operator, param, item, "a torch.Tensor")
            if item is not None:
                _refuse_sparse(operator, param, item)
        return [item if item is None else _resolved(operator, at, item) for item in value]
    if not isinstance(value, torch.Tensor):
        raise _no_tensor(operator, param, value, "a torch.Tensor")
    _refuse_sparse(operator, param, value)
    return _resolved(operator, at, value)


def _resolved(operator: Operator, at: int, value: torch.Tensor) -> torch.Tensor:
    """A conj or neg view's own values: in a handler of __torch_dispatch__ torch.ops does not resolve it."""
    if not _is_lazy(value):
        return value
    if at in operator.mutated:  # torch's fallback takes results for the arguments that were written
        raise TypeError(
            f"{operator.name}: {operator.names[at]} is a conj or neg view, which cannot be written in place"
        )
    _refuse_short(operator, operator.inputs[at], value)
    return value.resolve_conj().resolve_neg()


def _refuse_sparse(operator: Operator, param: dict[str, Any], value: torch.Tensor) -> None:
    """No operator has a kernel for these, and torch's own message would not name the argument."""
    dense = value.layout == torch.strided and not value.is_quantized and not value.is_nested
    if not dense:
        kind = "quantized" if value.is_quantized else "nested" if value.is_nested else value.layout
        raise TypeError(
            f"{operator.name}: {param['name']} is a tensor of another kind "
            f"({str(kind).removeprefix('torch.')}), expected a dense one"
        )


def _refuse_frozen(operator: Operator, param: dict[str, Any], place: torch.Tensor) -> None:
    """As the guard with the glue does: torch itself does not look."""
    if torch.compiler.is_compiling():  # which cannot trace the question, and makes the result anew
        return
    if place.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            f"{operator.name}: {param['name']} is an inference tensor, which may be written in inference mode only"
        )


def _refuse_short(operator: Operator, param: dict[str, Any], tensor: torch.Tensor) -> None:
    """As the guard does: torch itself copies to and from memory that is not there."""
    if not torch.compiler.is_compiling() and _is_short(tensor):
        raise ValueError(f"{operator.name}: {param['name']} is larger than its storage")


def _is_short(tensor: Any) -> bool:
    """Whether a plain tensor's storage ends before its elements do."""
    try:
        if not _has_memory(tensor):
            return False
        has = tensor.untyped_storage().nbytes()
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    except (RuntimeError, NotImplementedError):  # of a transform, or nested
        return False
    return (tensor.storage_offset() + last + 1) * tensor.element_size() > has


def _has_memory(tensor: Any) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and not tensor.is_meta and tensor.numel() > 0


def _no_tensor(operator: Operator, param: dict[str, Any], value: Any, expected: str) -> TypeError:
    return TypeError(
        f"{operator.name}: {param['name']} is {object_text(value)}, expected {expected} as the "
        "tensors before it"
    )


def _mask(operator: Operator, results: list[Any]) -> int:
    """Bits of the results that are wanted; False says that one is not."""
    mask = -1
    for bit, value in enumerate(results):
        if value is False:
            mask &= ~(1 << bit)
    return mask


def _copied(operator: Operator, inputs: list[Any], results: list[Any], use: str | None) -> Any:
    """Where only some results are given, or some are optional: computed anew, then copied to their places."""
    if requires((*inputs, *results)):
        raise out_error(operator)
    places = [(at, p) for at, p in enumerate(results) if p is not None and p is not False]
    _refuse_shared(operator, places)
    found = operator.call(inputs, _mask(operator, results), use)
    found = list(found) if isinstance(found, tuple) else [found]
    for at, place in places:  # all of them before the first is written
        if not torch.compiler.is_compiling() and _is_fake(place) != _is_fake(found[at]):
            _refuse_fake(operator, [*inputs, *results])
        for what in ("shape", "dtype", "device", "layout"):
            if getattr(place, what) != getattr(found[at], what):
                error = TypeError if what in ("dtype", "layout") else ValueError
                raise error(
                    f"{operator.name}: {operator.results[at]['name']} has {what} {getattr(place, what)}, "
                    f"expected {getattr(found[at], what)}"
                )
    if torch.compiler.is_compiling():
        for at, place in places:
            place.copy_(found[at])
    else:
        _write_all([(place, found[at]) for at, place in places])
    for at, place in places:
        found[at] = place
    return found[0] if len(found) == 1 else tuple(found)


def _write_all(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies to all places or, where torch refuses one (a ZeroTensor, one of a transform that is over), to none."""
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for place, value in pairs:
            before = place.clone() if len(written) + 1 < len(pairs) else value
            place.copy_(value)
            written.append((place, before))
    except BaseException:
        for place, before in written:
            place.copy_(before)
        raise


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor)


def _is_lazy(tensor: Any) -> bool:
    """Whether it is a conj or neg view; as a result one that torch's fallback for them cannot write."""
    if torch.compiler.is_compiling():  # a graph has none
        return False
    return isinstance(tensor, torch.Tensor) and (tensor.is_neg() or tensor.is_conj())


def _refuse_shared(operator: Operator, places: list[tuple[int, torch.Tensor]]) -> None:
    """As the core does: one result would be copied over another, or over itself."""
    if torch.compiler.is_compiling():  # which cannot trace addresses
        return
    seen: list[tuple[str, range]] = []
    for at, place in places:
        name = operator.results[at]["name"]
        span = _span(place)
        if len(span) < place.numel() * place.element_size() and span:
            raise ValueError(
                f"{operator.name}: {name} has sizes {tuple(place.shape)} and strides {place.stride()}: its "
                "elements overlap, so it cannot be written"
            )
        for other, taken in seen:
            if span and taken and span.start < taken.stop and taken.start < span.stop:
                raise ValueError(f"{operator.name}: {name} overlaps {other} in memory")
        seen.append((name, span))


def _span(tensor: torch.Tensor) -> range:
    """The addresses of a tensor's elements; none where it is empty or has no memory."""
    if not _has_memory(tensor):
        return range(0)
    try:
        first = tensor.data_ptr()
    except RuntimeError:  # of a transform
        return range(0)
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return range(first, first + (last + 1) * tensor.element_size())
