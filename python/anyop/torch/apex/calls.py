# SPDX-License-Identifier: Apache-2.0
"""What Apex's functions do around a kernel: types under autocast, refusals, standard operators while exporting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def exporting() -> bool:
    """Whether a graph of standard operators is being made: ONNX, TorchScript."""
    onnx = torch.onnx.is_in_onnx_export()
    return bool(onnx or torch.jit.is_tracing() or torch.jit.is_scripting())


def in_lower_dtype(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args); under autocast with floating tensors in its dtype, and autocast off inside."""
    kind = next(value.device.type for value in args if isinstance(value, torch.Tensor))
    if not torch.is_autocast_enabled(kind):
        return function(*args)
    dtype = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        return function(*(_cast(value, dtype) for value in args))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floating and value.dtype is not torch.float64 else value


def check(good: bool, message: str) -> None:
    """A RuntimeError, as Apex's extensions raise for what they do not take."""
    if not good:
        raise RuntimeError(message)


def applied(name: str, function: Callable[..., Any], module: str) -> type:
    """A class whose ``apply`` is the function: programs call Apex's autograd functions so."""
    return type(
        name, (), {"__module__": module, "__doc__": function.__doc__, "apply": staticmethod(function)}
    )  # fmt: skip


def not_yet(
    named: str, module: str, name: str, missing: Iterable[str], there: Iterable[str]
) -> AttributeError:
    """What a module's __getattr__ raises: says of Apex's names that they are not there yet."""
    if name in missing:
        text = (
            f"{named}.{name} is not in anyop.torch.apex yet; {named} has {', '.join(sorted(there))}"
        )
    else:
        text = f"module {module!r} has no attribute {name!r}"
    return AttributeError(text, name=name)
