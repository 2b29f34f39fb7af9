# SPDX-License-Identifier: Apache-2.0
"""Operators that torch's C ABI cannot take yet, as Python kernels: those with lists or text, before torch 2.10.

They are some microseconds slower by torch.ops, and the same for anyop.<op> on plain tensors. They need the glue: that
torch has no other way to its tensors' memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import anyop
from anyop import _scope
from anyop._load import core
from anyop.native.glues import torch_glue

IS_OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10)
_KEYS = ("CPU", "CUDA", "PrivateUse1")


def can_help() -> bool:
    """Whether this torch is one that needs them, and they would work."""
    return IS_OLD and torch_glue.load() is not None


def define(name: str, library: torch.library.Library) -> str | None:
    """Define both overloads of an operator, with kernels that call anyop.<op>; or say why torch cannot have it."""
    metadata = anyop.metadata(name)
    short, results = metadata["name"], metadata["results"]
    arguments, arrow, returned = metadata["schema"].partition("(")[2].rpartition(" -> ")
    arguments = arguments.rpartition(")")[0]
    function = getattr(getattr(anyop.ops, metadata["namespace"]), short)
    try:
        torch._C.parse_schema(f"{short}({arguments}){arrow}{returned}")
    except RuntimeError as error:  # such as a default of a list of text
        return f"torch cannot read its schema: {str(error).strip().splitlines()[0]}"
    star = "" if "*," in arguments.replace(" ", "") else ", *"
    names = [param["name"] for param in (*metadata["inputs"], *results)]
    use = "" if "use" in names else ", str? use=None"
    kept = star if use else ""
    if any(result["optional"] for result in results):
        library.define(f"{short}({arguments}, int results=-1{kept}{use}){arrow}{returned}")
        _implement(library, short, _with_mask(function, metadata), use)
        return None
    library.define(f"{short}({arguments}{kept}{use}){arrow}{returned}")
    _implement(library, short, function, use)
    if results:
        places = "".join(f", Tensor(out{i}!) {r['name']}" for i, r in enumerate(results))
        library.define(f"{short}.out({arguments}{star}{places}{use}) -> ()")
        _implement(library, f"{short}.out", _without_result(function), use)
    return None


def _implement(
    library: torch.library.Library, name: str, function: Callable, takes_scope: str
) -> None:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        use = kwargs.pop("use", None) if takes_scope else None
        with torch._C.DisableTorchFunctionSubclass():
            args = tuple(map(_plain, args))
            kwargs = {name: _plain(value) for name, value in kwargs.items()}
        if use is None:
            return core.call_below_dispatcher(function, args, kwargs)
        core.check_scope(use)
        with _scope.resumed(use):
            return core.call_below_dispatcher(function, args, kwargs)

    for key in _KEYS:
        library.impl(name, kernel, key)


def _plain(value: Any) -> Any:
    """A subclass whose _torch_function__ has been asked comes here as itself."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    is_subclass = isinstance(value, torch.Tensor) and type(value) is not torch.Tensor
    return value.as_subclass(torch.Tensor) if is_subclass else value


def _with_mask(function: Callable, metadata: dict[str, Any]) -> Callable:
    """Bit i of results says whether result i is wanted."""
    count, names = len(metadata["inputs"]), [result["name"] for result in metadata["results"]]

    def kernel(*args: Any, results: int = -1, **kwargs: Any) -> Any:
        mask = args[count] if len(args) > count else results
        unwanted = {name: False for bit, name in enumerate(names) if not mask >> bit & 1}
        return function(*args[:count], **kwargs, **unwanted)

    return kernel


def _without_result(function: Callable) -> Callable:
    def kernel(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    return kernel
