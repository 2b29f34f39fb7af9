# SPDX-License-Identifier: Apache-2.0
"""Who may serve overloads of ATen's on the device "anyop" and under overlays: anyop's operators, and Python functions.

A function becomes an operator of torch's, anyop_python::add__Tensor.triton, which the library calls by the dispatcher
where a route names it. FlagGems' functions become such when they are first looked for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from anyop import _operators
from anyop._nearest import did_you_mean
from anyop.adapter.object_text import object_text
from anyop.native import device

_BUILT_IN = ("native", "aten", "boxed", "cpu_fallback", "none")
_FLAGGEMS = "flaggems"
_functions: dict[tuple[str, str], Callable[..., Any]] = {}  # overload, backend
_defined: set[tuple[str, str]] = set()
_lock = threading.Lock()
_fragment: Any = None  # a torch.library.Library, once there is one


def load_library() -> None:
    """Load the library of overloads, built where it is not there. Claims no device. Raises ImportError."""
    try:
        if not hasattr(torch.ops.anyop_device, "add_native"):
            device.load()
    except (OSError, RuntimeError, ValueError) as error:
        text = str(error).split("\nException raised from", 1)[0]
        raise ImportError(f"anyop.torch: {text}") from error
    tell()


def tell() -> None:
    """Tell the library of all operators, and of what Python can serve. The second call does nothing."""
    global _fragment
    with _lock:
        if _fragment is not None:
            return
        _fragment = torch.library.Library("anyop_python", "FRAGMENT")
        _fragment.define("provide(str overload, str backend) -> bool")
        _fragment.define("has(str backend) -> bool")
        _fragment.impl("provide", _provide, "CompositeExplicitAutograd")
        _fragment.impl("has", _has, "CompositeExplicitAutograd")
    _tell_natives(_operators.list_ops())
    _operators.on_new_operators.append(_tell_natives)


def register(
    op: str, function: Callable[..., Any] | None = None, *, backend: str = "python"
) -> Callable[..., Any]:
    """Let a function serve an overload of ATen's where a route names its backend, and return it; also a decorator.

        @anyop.torch.device.register("mm", backend="triton")
        def my_mm(self, mat2): ...

        anyop.torch.device.set_route("mm", "triton, aten")

    op:       "mm", "add.Tensor".
    function: gets the overload's arguments as torch's Python operators do, tensors as ones of cpu or cuda over the same
              memory, and returns or writes what the overload does. No gradients are recorded in it. By
              NotImplementedError it passes a call on to the next backend of the route.
    backend:  what routes name; letters, digits and _.

    Raises ValueError for an unknown overload or a name that routes cannot have. Safe while other threads call.
    """
    if function is None:
        return partial(register, op, backend=backend)
    if not callable(function):
        raise TypeError(f"{op}: function is {object_text(function)}, expected a callable")
    if backend in _BUILT_IN or not re.fullmatch(r"[A-Za-z]\w*", backend, re.ASCII):
        raise ValueError(f"{op}: backend is {backend!r}, expected a name other than {_BUILT_IN}")
    overload = overload_of(op)
    load_library()
    _define(str(overload._schema.name).removeprefix("aten::"), overload, backend, function)
    torch.ops.anyop_device.add_backend(backend)
    return function


def unregister(op: str, backend: str = "python") -> None:
    """Take a function away: routes pass on to the next backend. Raises ValueError where there is none."""
    overload = overload_of(op)
    if _functions.pop((_key(overload), backend), None) is None:
        raise ValueError(f"no function serves {op} as {backend}")


def overload_of(op: str) -> torch._ops.OpOverload:
    """By its name, with or without aten. Raises ValueError."""
    name, _, overload = _plain(op).partition(".")
    found = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(unknown(op))
    return found


def unknown(op: str) -> str:
    """What to say of a name that is no overload."""
    name = _plain(op).partition(".")[0]
    packet = getattr(torch.ops.aten, name, None)
    known = [f"{name}.{o}" for o in packet.overloads()] if packet else []
    every = (s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas())
    near = did_you_mean(_plain(op), known) if packet else did_you_mean(name, set(every))
    there = ", ".join(known) or "none"
    return f"torch has no overload of ATen's named '{op}'; of that name: {there}{near}"


def is_name(op: str) -> bool:
    """Whether a name is an overload's, or that of all overloads of an operator."""
    name, _, overload = _plain(op).partition(".")
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and (not overload or overload in packet.overloads())


def _plain(op: str) -> str:
    return op.removeprefix("aten::").removeprefix("aten.")


def _key(overload: torch._ops.OpOverload) -> str:
    """As the library names it: "mm", "add.Tensor"."""
    return str(overload).removeprefix("aten.").removesuffix(".default")


def _define(name: str, overload: Any, backend: str, function: Callable[..., Any]) -> None:
    """Makes the operator once; which function it calls can change."""
    key = (_key(overload), backend)
    with _lock:
        _functions[key] = function
        if key in _defined:
            return
        operator = f"{key[0].replace('.', '__')}.{backend}"
        arguments = str(overload._schema).partition("(")[2]
        _fragment.define(f"{operator}({arguments}")
        _fragment.impl(operator, partial(_call, key), "CompositeExplicitAutograd")
        _defined.add(key)


def _call(key: tuple[str, str], *arguments: Any, **named: Any) -> Any:
    function = _functions.get(key)
    try:
        if function is None:
            raise NotImplementedError("was unregistered")
        return function(*arguments, **named)
    except NotImplementedError as error:
        from anyop.backend.python import describe

        why = str(error) or (describe(function) if function else "")
        torch.ops.anyop_device.decline(why.split("\nException raised from", 1)[0])
        raise


def _provide(overload: str, backend: str) -> bool:
    """Called once for each overload and backend that a route names and nobody has registered."""
    if backend != _FLAGGEMS:
        return False
    from anyop.backend import flaggems

    try:
        found = overload_of(overload)
        function = flaggems.python_functions(torch)(found)
    except (LookupError, ValueError):
        return False
    if function is None:
        return False
    _define(overload, found, backend, function)
    return True


def _has(backend: str) -> bool:
    if backend == _FLAGGEMS:
        from anyop.backend.python import missing

        return not missing(["flag_gems"])
    return any(name == backend for _, name in list(_functions))


def _tell_natives(ops: list[str]) -> None:
    texts = [
        (
            text["overload"],
            op,
            text.get("device"),
            *(_tuples(text.get(key, ())) for key in ("given", "arguments", "named")),
        )
        for op in ops
        for text in _operators.metadata(op).get("aten_overloads", ())
    ]
    torch.ops.anyop_device.add_native(tuple(texts))


def _tuples(value: Any) -> Any:
    """As torch's operators take what is of several kinds; a dict as pairs."""
    if isinstance(value, dict):
        value = list(value.items())
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value
