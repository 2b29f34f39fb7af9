# SPDX-License-Identifier: Apache-2.0
"""Decoder layers of transformers: the residual and the norm behind it, between attention and feed-forward part, as one.

A layer is known by its children, and by its own forward on random numbers with children that record what they are
given. The residual behind the feed-forward part stays: the norm that follows it is the next layer's.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop._routes import unrecorded
from anyop.torch import layers
from anyop.torch.models import gains, hugging_face
from anyop.torch.models.hugging_face import TOLERANCE, RmsNorm, Swapped


class ResidualNorm(Swapped):
    """x + attention(norm(x)), then y + mlp(norm(y)), each result scaled by residual_multiplier where there is one."""

    operator = "fused_add_rms_norm"
    norm = "post_attention_layernorm"  # behind the residual that is joined with it
    ends: tuple[str, str] | None = None  # what the results of attention and mlp go through

    @classmethod
    def looks_like(cls, module):
        children = {"input_layernorm", "self_attn", cls.norm, "mlp", *(cls.ends or ())}
        return set(module._modules) == children and not module._parameters

    def forward(self, hidden_states, *args, **kwargs):
        if args:
            return super().forward(hidden_states, *args, **kwargs)
        kwargs = {"attention_mask": None, "position_embeddings": None} | kwargs
        found = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
        out, total = _added(self._end(0, found), hidden_states, self._modules[self.norm])
        return total + self._end(1, self.mlp(out))

    def _end(self: Any, place: int, found: Tensor) -> Tensor:
        if self.ends:
            found = self._modules[self.ends[place]](found)
        scale = getattr(self, "residual_multiplier", None)
        return found if scale is None else found * scale


class DroppedResidualNorm(ResidualNorm):
    """With dropout of both results (Phi 3)."""

    ends = ("resid_attn_dropout", "resid_mlp_dropout")


class NormedResidualNorm(ResidualNorm):
    """With a norm of both results (Gemma 2 and 3)."""

    norm = "pre_feedforward_layernorm"
    ends = ("post_attention_layernorm", "post_feedforward_layernorm")


KINDS = (ResidualNorm, DroppedResidualNorm, NormedResidualNorm)


def kind_of(module: torch.nn.Module) -> Any:
    """The kind whose structure the layer has."""
    if isinstance(module, Swapped):
        return None
    return next((kind for kind in KINDS if kind.looks_like(module)), None)


def refusal(module: torch.nn.Module, kind: Any) -> str | None:
    """Why the layer stays as it is."""
    if "forward" in module.__dict__:
        return "its forward was replaced"
    norm = module._modules[kind.norm]
    if not isinstance(norm, RmsNorm):
        return f"its {kind.norm} was not swapped"
    return None if agrees(module, kind) else "it does not compute a residual and a norm"


def gain(module: Any, kind: Any) -> gains.Gain | None:
    """Of the sum and the norm of a layer."""
    norm: Any = module._modules[kind.norm]
    weight: Tensor = norm.weight
    if hugging_face.hooks(norm):
        return None

    def calls(rows: int) -> gains.Calls:
        x = gains.numbers((1, rows, weight.numel()), weight.dtype, weight.device)
        return (lambda: norm(x + x)), (lambda: _added(x, x, norm))

    of = type(norm), weight.numel(), weight.dtype
    return gains.gain(type(module).__name__, of, calls, weight.device)


def _added(x: Tensor, residual: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and that sum: in one, where nothing but the norm's formula is asked of it."""
    known = isinstance(norm, RmsNorm) and _one_type(x, residual, norm)
    usual = x.shape == residual.shape and not torch.is_autocast_enabled(x.device.type)
    if known and usual and not hugging_face.hooks(norm):
        more = {"weight_offset": norm.weight_offset} if norm.weight_offset else {}
        x, residual = layers.rows_of(x), layers.rows_of(residual)
        found: tuple[Tensor, Tensor] = anyop.fused_add_rms_norm(
            x, residual, norm.weight, hugging_face.eps_of(norm), **more
        )
        return found
    total = residual + x
    return norm(total), total


def _one_type(x: Tensor, residual: Tensor, norm: Any) -> bool:
    return x.dtype is residual.dtype is norm.weight.dtype


class _Recorder(torch.nn.Module):
    """Stands for a child: scales what it is given, and keeps the keywords."""

    def __init__(self, scale: float, of_attention: bool = False) -> None:
        super().__init__()
        self.scale, self.of_attention, self.seen = scale, of_attention, []

    def forward(self, hidden_states, **kwargs):
        self.seen.append(kwargs)
        found = hidden_states * self.scale
        return (found, None) if self.of_attention else found


def agrees(module: torch.nn.Module, kind: Any) -> bool:
    """Whether the layer's own forward gives what kind's gives, and calls its attention with the same."""
    try:
        with unrecorded(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            return all(_agrees(module, kind, dtype) for dtype in TOLERANCE)
    except Exception:  # forward is somebody else's and may raise anything
        return False


def _agrees(module: Any, kind: Any, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    own: Any = type(module)
    layer = _stand_in(module, kind, generator, dtype)
    names = [*inspect.signature(own.forward).parameters.values()][2:]
    given: dict[str, Any] = {p.name: object() for p in names if p.kind is p.POSITIONAL_OR_KEYWORD}
    given["more"] = object()
    x = torch.randn(2, 3, 8, generator=generator, dtype=dtype, device="cpu")
    for training in (False, True):
        layer.training = training
        results = []
        for swapped in (own, hugging_face.joined(kind, own)):
            object.__setattr__(layer, "__class__", swapped)
            results.append(swapped.forward(layer, x, **given))
        first, second = layer._modules["self_attn"].seen[-2:]
        if first != second or results[0].dtype is not results[1].dtype:
            return False
        if not torch.allclose(*results, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]):
            return False
    return True


def _stand_in(module: Any, kind: Any, generator: torch.Generator, dtype: torch.dtype) -> Any:
    """A copy of the layer with recorders as children; the norm that is joined has random weights."""
    norm = hugging_face.shared_copy(module._modules[kind.norm])
    weight = torch.randn(8, generator=generator, dtype=dtype, device="cpu")
    norm.__dict__["_parameters"] = {"weight": torch.nn.Parameter(weight)}
    children: dict[str, Any] = {
        name: _Recorder(1.5 + place, name == "self_attn")
        for place, name in enumerate(module._modules)
    }
    return hugging_face.shared_copy(module, _modules=children | {kind.norm: norm})
