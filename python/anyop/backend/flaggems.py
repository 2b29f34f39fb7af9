# SPDX-License-Identifier: Apache-2.0
"""The backend "flaggems": FlagGems's Python package of Triton kernels. Its compiled library is flaggems_c's.

An operator with an aten text has both. The text is the same, its operators are FlagGems's: those that it lists under
ATen's names, views and memory of ATen, and what ATen itself makes of these. Nothing is registered in torch's
dispatcher, and ATen computes nothing in FlagGems's place but conversions to the dtype of the arithmetic.
"""

from __future__ import annotations

import contextvars
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

from anyop import _frameworks, _operators
from anyop.backend import aten
from anyop.backend.call_text import read_call_text
from anyop.backend.python import missing

Find = Callable[[Any], "Callable[..., Any] | None"]  # an overload of ATen -> what computes it

# What ATen makes of these operators: FlagGems must have it, or the operator is not offered.
_PARTS = {
    "softmax.int": ("_softmax",),
    "log_softmax.int": ("_log_softmax",),
    "layer_norm": ("native_layer_norm",),
    "matmul": ("mm", "bmm"),
    "linear": ("mm", "addmm"),
    "sum_to_size": ("sum.dim_IntList",),
}
_TAKE_NUMBERS = ("add", "sub", "mul", "div")  # FlagGems's .Tensor is .Scalar too
_MEMORY = (
    "empty", "empty_like", "new_empty", "new_zeros", "new_ones", "empty_strided", "_unsafe_view",
)  # fmt: skip


def provide(op: str, text: str) -> aten.Run | str:
    """The provider of form "flaggems": the function that core calls, or what is missing."""
    return resolve(op, text, python_functions)


def resolve(
    op: str, text: str | Mapping[str, Any], functions: Callable[[ModuleType], Find]
) -> aten.Run | str:
    """A call of ATen's, by what a library has in its place; or what is missing."""
    why = missing(["torch"])
    if why:
        return why
    try:
        torch = _frameworks.import_real_torch()
        look_up = partial(_look_up, torch, functions(torch))
        names = [p["name"] for key in ("inputs", "results") for p in _operators.metadata(op)[key]]
        for name, overload in read_call_text(text, names).operators:
            look_up(name, overload)  # says what is missing
        return aten.provide(op, text, look_up)
    except LookupError as error:
        return str(error)


def _overload(torch: ModuleType, key: str) -> Any:
    name, _, overload = key.partition(".")
    return getattr(getattr(torch.ops.aten, name, None), overload or "default", None)


def _look_up(torch: ModuleType, find: Find, name: str, overload: str | None) -> Callable[..., Any]:
    """What stands for an operator of a text. Raises LookupError."""
    key = f"{name}.{overload}" if overload else name
    function = _overload(torch, key)
    if function is None:
        raise LookupError(f"torch {torch.__version__} has no aten::{key}")
    own = _own(torch, find, function)
    if own or _moves_nothing(function):
        return own or function
    parts = [_overload(torch, part) for part in _PARTS.get(key, ())]
    if not parts or not all(map(find, parts)):
        raise LookupError(f"FlagGems has no {key}")
    mode = _mode(torch)

    def call(*args: Any, **kwargs: Any) -> Any:
        with mode(find):
            return function(*args, **kwargs)

    return call


def _own(torch: ModuleType, find: Find, function: Any) -> Callable[..., Any] | None:
    """FlagGems's function, with ATen's meaning: it takes contiguous memory, and sizes of zero divide its grid."""
    own = find(function)
    if own is None:
        return None
    as_aten = _AS_ATEN.get(key_of(function))
    call = partial(as_aten, torch, own, find) if as_aten else own

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if any(x.numel() == 0 for x in _tensors(torch, args)):
            return function(*args, **kwargs)
        given = [_contiguous(torch, arg) for arg in args]
        # What it sets for Triton, such as an allocator that keeps an argument, ends with the call.
        return contextvars.copy_context().run(call, *given, **kwargs)

    return guarded


def _tensors(torch: ModuleType, args: Sequence[Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(torch, arg)


def _contiguous(torch: ModuleType, arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return [_contiguous(torch, each) for each in arg]
    return arg.contiguous() if isinstance(arg, torch.Tensor) else arg


def _mul(torch: ModuleType, own: Callable[..., Any], find: Find, x: Any, y: Any) -> Any:
    """FlagGems's for Hopper takes tensors of as many dimensions for tensors of one shape and dtype."""
    if isinstance(y, torch.Tensor):
        x, y = (
            each.to(torch.result_type(x, y)).contiguous() for each in torch.broadcast_tensors(x, y)
        )
    return own(x, y)


def _layer_norm(
    torch: ModuleType, own: Callable[..., Any], find: Find, x: Any, size: Any, *args: Any
) -> Any:
    """FlagGems gives flat means and deviations."""
    out, *found = own(x, size, *args)
    rows = [*x.shape[: -len(size)], *[1] * len(size)]
    return (out, *(each.view(rows) for each in found))


def _layer_norm_backward(
    torch: ModuleType,
    own: Callable[..., Any],
    find: Find,
    grad_out: Any,
    x: Any,
    size: Any,
    *args: Any,
) -> Any:
    """FlagGems takes the first dimension for the rows."""
    rows = (-1, math.prod(size))
    grad_x, *others = own(grad_out.view(rows), x.view(rows), size, *args)
    return (None if grad_x is None else grad_x.view(x.shape), *others)


def _to_copy(torch: ModuleType, own: Callable[..., Any], find: Find, x: Any, **kwargs: Any) -> Any:
    """FlagGems rounds to an integer on the way to a bool."""
    differs = kwargs.get("dtype") is torch.bool and find(torch.ops.aten.ne.Scalar)
    return differs(x, 0) if differs else own(x, **kwargs)


# Where FlagGems's function differs from ATen's.
_AS_ATEN: dict[str, Callable[..., Any]] = {
    "mul.Tensor": _mul,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_to_copy": _to_copy,
}


def _moves_nothing(function: Any) -> bool:
    """Views and new memory."""
    schema = function._schema
    aliases = [a.alias_info for a in schema.returns if a.alias_info is not None]
    is_view = bool(aliases) and not any(info.is_write for info in aliases)
    return is_view or schema.name.removeprefix("aten::") in _MEMORY


@lru_cache(maxsize=1)
def _mode(torch: ModuleType) -> type:
    """A mode in which operators are FlagGems's, however ATen comes to call them."""

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined]
        def __init__(self, find: Find) -> None:
            super().__init__()
            self.find = find

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            own = _own(torch, self.find, func)
            if own or _moves_nothing(func):
                return (own or func)(*args, **(kwargs or {}))
            with self:
                found = func.decompose(*args, **(kwargs or {}))
            if found is NotImplemented:
                raise NotImplementedError(f"FlagGems has no {str(func).removeprefix('aten.')}")
            return found

    return Mode


def key_of(function: Any) -> str:
    """As FlagGems lists it: softmax.int, and mm without an overload."""
    return str(function).removeprefix("aten.").removesuffix(".default")


def python_functions(torch: ModuleType) -> Find:
    """FlagGems's own list of what it would register in torch, never registered."""
    why = missing(["flag_gems"])
    if why:
        raise LookupError(why)
    try:
        package = importlib.import_module("flag_gems")
    except Exception as error:  # it looks for its device when it is imported
        why = missing([error.name or ""]) if isinstance(error, ModuleNotFoundError) else None
        if why:
            raise LookupError(f"flag_gems {why}") from None
        raise LookupError(
            f"flag_gems cannot be imported: {type(error).__name__}: {error}"
        ) from error
    listed = getattr(package, "_FULL_CONFIG", None)
    if listed is None:
        version = getattr(package, "__version__", "")
        raise LookupError(f"flag_gems {version} does not list its operators (_FULL_CONFIG)")
    functions = {key: function for key, function, *_ in listed}
    for name in _TAKE_NUMBERS:
        if f"{name}.Tensor" in functions:
            functions.setdefault(f"{name}.Scalar", functions[f"{name}.Tensor"])
    return lambda function: functions.get(key_of(function))
