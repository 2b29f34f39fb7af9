# SPDX-License-Identifier: Apache-2.0
"""Which class makes a given module run anyop operators, or why it stays as it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

import anyop
from anyop._routes import implementations
from anyop.torch import layers
from anyop.torch.models import hugging_face

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
LAYERS = {  # class of torch.nn: class with the same attributes, operator
    torch.nn.Linear: (layers.Linear, "linear"),
    torch.nn.RMSNorm: (layers.RMSNorm, "rms_norm"),
    torch.nn.LayerNorm: (layers.LayerNorm, "layer_norm"),
    torch.nn.Embedding: (layers.Embedding, "embedding"),
    torch.nn.SiLU: (layers.SiLU, "silu"),
    torch.nn.GELU: (layers.GELU, "gelu"),
    torch.nn.ReLU: (layers.ReLU, "relu"),
    torch.nn.Softmax: (layers.Softmax, "softmax"),
    torch.nn.LogSoftmax: (layers.LogSoftmax, "log_softmax"),
}
# Attributes that say what no operator does.
UNSUPPORTED: dict[type, dict[str, Any]] = {
    torch.nn.SiLU: {"inplace": False},
    torch.nn.ReLU: {"inplace": False},
    torch.nn.Embedding: {"max_norm": None, "scale_grad_by_freq": False, "sparse": False},
}


class Refusal(NamedTuple):
    """A module whose class or structure fits stays as it is, for this reason."""

    reason: str


def match(module: torch.nn.Module, device_type: str) -> type | Refusal | None:
    """The class to give the module; a refusal; None for a module of no known kind.

    device_type: of a module that has no parameters.
    """
    original: Any = type(module)
    if original in LAYERS:
        found, operator = LAYERS[original]
        reason = _setting(module)
    else:
        kinds: Any = hugging_face.kinds_of(module)
        if not kinds:
            return None
        kind = next((kind for kind in kinds if hugging_face.agrees(module, kind)), None)
        operator = kinds[0].operator
        reason = None if kind else f"it does not compute {operator}"
        found = hugging_face.joined(kind or kinds[0], original)
        if kind:
            kind.prepare(module, found)
    reason = reason or _object(module) or _device(module, operator, device_type)
    return found if reason is None else Refusal(reason)


def _setting(module: torch.nn.Module) -> str | None:
    for name, usual in UNSUPPORTED.get(type(module), {}).items():
        if getattr(module, name) != usual:
            return f"{name}={getattr(module, name)}"
    if isinstance(module, (torch.nn.Softmax, torch.nn.LogSoftmax)) and module.dim is None:
        return "no dim"
    return None


def _object(module: torch.nn.Module) -> str | None:
    """What was done to this very object that another class would not keep."""
    if "forward" in module.__dict__:
        return "its forward was replaced"
    for parameter in module._parameters.values():
        if parameter is not None and type(parameter) is not torch.nn.Parameter:
            return f"it holds a {type(parameter).__name__}"
        if parameter is not None and parameter.dtype not in DTYPES:
            return f"it holds {str(parameter.dtype).removeprefix('torch.')}"
    return None


def _device(module: torch.nn.Module, operator: str, device_type: str) -> str | None:
    own = next((parameter.device.type for parameter in module.parameters()), device_type)
    return None if own == "meta" or _kernels(operator, own) else f"no kernel of {operator} on {own}"


def _kernels(operator: str, device_type: str) -> set[str]:
    """The kinds of device whose kernels of the operator run there: of anyop's own device, those below it."""
    if device_type != torch._C._get_privateuse1_backend_name():
        return {device_type} & {*anyop.backends(operator)}
    there = [found for found in implementations(operator) if found["on_anyop"]]
    return {
        found["on_anyop"]
        for found in there
        if found["name"] == found["on_anyop"] or not (found["form"] or found["device"] == "any")
    }
