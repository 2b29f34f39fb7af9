# SPDX-License-Identifier: Apache-2.0
"""Functions of tvm-ffi as implementations: those handed over, and those that a Python module makes."""

from __future__ import annotations

import functools
import importlib
import json
import threading
from collections.abc import Sequence
from typing import Any

from anyop._load import core
from anyop.backend.register import DEVICES

_making = threading.RLock()


def register_tvm_ffi(
    op: str,
    call: str,
    function: Any = None,
    *,
    backend: str = "tvm_ffi",
    name: str | None = None,
    module: str = "",
    library: str = "",
    needs: Sequence[str] = (),
    device: str = "any",
    when: str | None = None,
    priority: int = -50,
    deterministic: bool = False,
    source: str | None = None,
) -> None:
    """Let calls of an operator run a function of tvm-ffi.

    op:       "rms_norm", "acme.scale"
    call:     the function and its arguments, as in a schema: "rmsnorm(out, rows(x), weight, eps, False)"
    function: a tvm_ffi.Function or a Python callable. None: found by its name when it is first needed, in
              `library` (a file that tvm-ffi loads), in what `module` names ("package.module:attribute": a module
              of tvm-ffi, or a function that makes one), else among tvm-ffi's global functions.
    needs:    what an error names where the function is not found
    device:   "cpu", "cuda", "hip" or "any"; when, priority, deterministic: as in a schema
    Raises    ValueError where the call does not fit the operator, or a name is unknown.
    """
    if device not in DEVICES:
        raise ValueError(
            f"register_tvm_ffi: device {device!r}, expected one of {', '.join(DEVICES)}"
        )
    if (function is not None) + bool(module) + bool(library) > 1:
        raise ValueError("register_tvm_ffi: got more than one of function, module and library")
    text = {"call": call, "module": module, "library": str(library), "needs": list(needs)}
    core.register_tvm_ffi_call(
        op,
        backend,
        name,
        source if source is not None else module or str(library) or "tvm-ffi",
        when,
        DEVICES[device],
        priority,
        deterministic,
        json.dumps(text),
        None if function is None else as_function(function),
    )


def as_function(function: Any) -> Any:
    """The tvm_ffi.Function that a callable is, or becomes. Raises TypeError."""
    import tvm_ffi

    if isinstance(function, tvm_ffi.Function):
        return function
    if not callable(function):
        raise TypeError(f"got {type(function).__name__}, expected a function of tvm-ffi")
    return tvm_ffi.convert(function)


def find(module: str, function: str) -> Any:
    """The function of that name in what `module` names; a str that says why there is none. Called by core."""
    try:
        made = make(module)
        if callable(made) and type(made).__name__ == "Function":
            return as_function(made)
        found = getattr(made, function, None)
        return f"{module} has no function '{function}'" if found is None else as_function(found)
    except ModuleNotFoundError as error:
        return f"needs {error.name}, which is not installed"
    except Exception as error:
        return f"{module}: {type(error).__name__}: {error}"


def make(module: str) -> Any:
    """What "package.module:attribute" names; a function without arguments is called, once in a process."""
    with _making:  # two builds of one module would be in each other's way
        return _make(module)


@functools.cache
def _make(module: str) -> Any:
    name, _, path = module.partition(":")
    found: Any = importlib.import_module(name)
    for attribute in path.split(".") if path else ():
        found = getattr(found, attribute)
    return found() if _is_maker(found) else found


def _is_maker(found: Any) -> bool:
    import tvm_ffi

    return callable(found) and not isinstance(found, (tvm_ffi.Module, tvm_ffi.Function))
