# SPDX-License-Identifier: Apache-2.0
"""anyop.register: a Python callable as one more implementation of an operator; anyop.unregister takes it away."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from anyop import _operators
from anyop._load import core
from anyop._nearest import did_you_mean
from anyop._routes import implementations
from anyop.adapter.dtypes import NAMES
from anyop.adapter.object_text import object_text
from anyop.backend.arrays import FRAMEWORKS
from anyop.backend.python import Signature, describe, runner, source_of

DEVICES = {"any": 0, "cpu": 1, "cuda": 2, "hip": 10}  # DLDeviceType
_CALLED = ("aten", "python", "tvm_ffi")  # forms of kernels that another may replace
_OVERLOADS = ("aten.", "aten::")  # as the router tells them from operators


def register(
    op: str,
    backend: str = "python",
    function: Callable | None = None,
    *,
    name: str | None = None,
    framework: str | None = None,
    device: str = "any",
    dtypes: Sequence[str] | None = None,
    when: str | None = None,
    priority: int = -200,
    deterministic: bool = False,
    needs: Sequence[str] = (),
) -> Callable:
    """Add a callable to an operator's implementations, and return it. Without function: a decorator.

        anyop.register("silu", "mine", torch.nn.functional.silu, framework="torch")

        @anyop.register("rms_norm", "slow")
        def slow_rms_norm(x, weight, eps):
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

        anyop.register("aten.mm", "mine", my_mm)  # ATen's overload, as anyop.torch.device.register

    function:      gets all inputs in the schema's order, None for absent ones, tensors as arrays of the framework that
                   share the caller's memory (JAX: copies). It may lack keyword-only ones of the schema: another value
                   than the default is NotImplementedError then. One with parameters named as the results gets their
                   places by keyword, None where nobody wants one, and writes them; what another returns is copied. It
                   may keep no array, and runs under Python's lock. What it raises arrives as itself (docs/errors.md).
    backend:       what routes name.
    name:          its own in the operator; one of the same name is replaced. Default: the backend's.
    framework:     numpy, torch, jax or cupy. Default: torch for the backend triton, else numpy, also for numba.
    device:        cpu, cuda, hip, or any: all that the framework has. NumPy and JAX compute on the CPU;
                   a JAX function is for callers of other frameworks, inside JAX's own programs it is refused.
    dtypes, when:  which calls it takes: dtypes of the first tensor, and a condition as in route files, "D<=8192".
    priority:      anyop's own kernels have 0; below, it runs when routed to, or when nothing else takes the call.
    deterministic: it gives the same bits in every run on the same device.
    needs:         modules without which it is not available; not imported before the first call.

    Safe while other threads call. Raises ValueError for an unknown operator, framework, device, dtype or condition,
    TypeError where the function does not take the operator's inputs.
    """
    if function is None:
        return lambda given: register(
            op, backend, given, name=name, framework=framework, device=device, dtypes=dtypes,
            when=when, priority=priority, deterministic=deterministic, needs=needs,
        )  # fmt: skip
    if _is_overload(op):
        told = (name, framework, device, dtypes, when, priority, deterministic, needs)
        return _register_overload(op, backend, function, told)
    _check_operator(op)
    framework = _framework(op, framework, backend)
    name = backend if name is None else name
    _check_function(op, function, framework)
    _check_name(op, backend, name)
    modules = [needs] if isinstance(needs, str) else list(needs)
    core.register_python(
        op, backend, name, source_of(function), _condition(op, dtypes, when),
        DEVICES[_device(op, framework, device)], _priority(op, priority), deterministic,
        lambda: runner(op, function, framework, modules),
    )  # fmt: skip
    return function


def unregister(op: str, name: str) -> None:
    """Take an implementation of that name away. Raises ValueError where the operator or the name is unknown.

    Calls under way finish in it; the callable is let go of behind the last of them. Routes that name its backend are
    used as if it could not take a call. Of an overload of ATen's, "aten.mm", the name is the backend's.
    """
    if _is_overload(op):
        return _overload_backends().unregister(op, name)
    _check_operator(op)
    try:
        core.unregister(op, name)
    except ValueError as error:
        own = [found["name"] for found in implementations(op) if found["form"]]
        raise ValueError(f"{error}{did_you_mean(name, own)}") from None


def _is_overload(op: Any) -> bool:
    return isinstance(op, str) and op.startswith(_OVERLOADS)


def _register_overload(op: str, backend: str, function: Callable, told: tuple) -> Callable:
    if told not in ((None, of, "any", None, None, -200, False, ()) for of in (None, "torch")):
        raise ValueError(f"{op}: an overload of ATen's takes op, backend and function alone")
    return _overload_backends().register(op, function, backend=backend)


def _overload_backends() -> Any:
    from anyop.torch import overload_backends

    return overload_backends


def _check_operator(op: Any) -> None:
    known = _operators.list_ops()
    if op in known:
        return
    if not isinstance(op, str):
        raise TypeError(f"op is {object_text(op)}, expected the name of an operator")
    raise ValueError(f"there is no operator '{op}'{did_you_mean(op, known)}")


def _check_one(op: str, what: str, value: Any, known: Collection[str]) -> None:
    if value not in known:
        expected = f"expected one of {', '.join(known)}{did_you_mean(value, known)}"
        raise ValueError(f"{op}: {what} '{value}', {expected}")


def _check_function(op: str, function: Any, framework: str) -> None:
    if not callable(function):
        raise TypeError(f"{op}: function is {object_text(function)}, expected a callable")
    if Signature(op, function).writes and not FRAMEWORKS[framework].writes:
        what = f"takes places for results, which arrays of {framework} cannot be"
        raise TypeError(f"{op}: {describe(function)} {what}")


def _priority(op: str, priority: Any) -> int:
    if type(priority) is not int or not -1000 <= priority <= 1000:
        raise ValueError(f"{op}: priority is {priority!r}, expected an int from -1000 to 1000")
    return priority


def _check_name(op: str, backend: Any, name: Any) -> None:
    """What routes can name, and no compiled kernel's."""
    for what, word, signs in (("backend", backend, ""), ("name", name, ".-")):
        if not isinstance(word, str) or not re.fullmatch(rf"[A-Za-z_][\w{signs}]*", word, re.ASCII):
            raise ValueError(f"{op}: {what} is {word!r}, expected letters, digits and _")
    for kernel in _operators.metadata(op)["kernels"]:
        if kernel["name"] == name and kernel["form"] not in _CALLED:
            fix = "give the function another name"
            raise ValueError(f"{op}: '{name}' is its own compiled kernel; {fix}")


def _framework(op: str, framework: str | None, backend: str) -> str:
    """That, or the backend's."""
    found = ("torch" if backend == "triton" else "numpy") if framework is None else framework
    _check_one(op, "framework", found, FRAMEWORKS)
    return found


def _device(op: str, framework: str, device: str) -> str:
    """The framework's only device for `any`."""
    _check_one(op, "device", device, DEVICES)
    only = FRAMEWORKS[framework].device
    if only == "any" or device == only:
        return device
    if device != "any":
        raise ValueError(f"{op}: {framework} computes on {only} only, device is '{device}'")
    return only


def _condition(op: str, dtypes: Sequence[str] | None, when: str | None) -> str | None:
    """One text of both."""
    if dtypes is None:
        return when
    dtypes = [dtypes] if isinstance(dtypes, str) else list(dtypes)
    if not dtypes:
        raise ValueError(f"{op}: dtypes is empty")
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    for name in names:
        _check_one(op, "dtype", name, NAMES)
    return " ".join(filter(None, (f"dtype={'|'.join(names)}", when)))
