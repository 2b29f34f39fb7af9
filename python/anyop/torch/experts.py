# SPDX-License-Identifier: Apache-2.0
"""anyop's experts in Hugging Face transformers: ``register()``, then ``experts_implementation="anyop"``."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import anyop

NAME = "anyop"
_LOGGER = logging.getLogger("anyop.torch.experts")
# What anyop.fused_moe calls the activation modules that transformers' experts have.
_ACTIVATIONS = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "ReLUSquaredActivation": "relu2",
}
# Experts with a gate of their own: its activation, and the attributes that hold alpha and limit.
_GATES = {
    "GptOssExperts": ("swigluoai", "alpha", "limit"),
    "MiniMaxM3VLExperts": ("swigluoai", "swiglu_alpha", "swiglu_limit"),
    "DeepseekV4Experts": ("silu", None, "limit"),
}


def register() -> None:
    """Makes ``experts_implementation="anyop"`` known to transformers (5 or newer), for every model that takes one.

    A layer is one call of ``anyop.fused_moe``. What that does not have is transformers' own ``grouped_mm``, which is
    logged once for each reason by the logger ``anyop.torch.experts``: other activations and gates, dtypes and devices
    without a kernel. Experts that interleave gates and ups (gpt-oss)
    are copied in each call: those that have tokens where these are few, else all.

    Raises:
        ImportError: transformers is missing or older.
    """
    try:
        from transformers.integrations.moe import ExpertsInterface
    except ImportError as error:
        raise ImportError(
            "anyop.torch.experts.register() needs transformers 5 or newer: pip install transformers"
        ) from error
    ExpertsInterface.register(NAME, forward)


@dataclass(frozen=True)
class Gate:
    """The arguments of anyop.fused_moe that say what a module does between its two products."""

    activation: str
    alpha: float = 1.0
    limit: float | None = None


def gate_of(module: Any) -> Gate | None:
    """None: fused_moe has no such gate."""
    from transformers.integrations.moe import _default_apply_gate

    name = type(module).__name__
    activation = _ACTIVATIONS.get(type(getattr(module, "act_fn", None)).__name__)
    if module.has_post_expert_norm:
        return None
    if not module.has_gate:
        return Gate("relu2") if activation == "relu2" else None
    if name in _GATES:
        own, alpha, limit = _GATES[name]
        if own == "silu" != activation:
            return None
        bound = float(getattr(module, limit))
        return Gate(own, float(getattr(module, alpha)) if alpha else 1.0, bound)
    if type(module)._apply_gate is not _default_apply_gate or activation in (None, "relu2"):
        return None
    return Gate(activation)


def forward(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The interface of transformers: tokens (T, H), the experts of each (T, k) and their weights; the result (T, H)."""
    given = hidden_states, top_k_index, top_k_weights
    gate = gate_of(module)
    reason = _why_not(module, gate)
    if reason is None and gate is not None:
        try:
            return _fused(module, gate, *given)
        except NotImplementedError as error:
            reason = str(error)
    if not torch.compiler.is_compiling():
        _log_once(type(module).__name__, reason)
    from transformers.integrations.moe import grouped_mm_experts_forward

    return grouped_mm_experts_forward(module, *given)


def _why_not(module: Any, gate: Gate | None) -> str | None:
    if gate is None:
        return f"fused_moe has no such gate, with {type(getattr(module, 'act_fn', None)).__name__}"
    if torch.compiler.is_compiling() and not module.is_concatenated:
        return "a compiled graph would copy all experts in each call"
    return None


def _fused(module: Any, gate: Gate, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
    w13, w2 = (getattr(module, name) for name in names)
    bias13, bias2 = (getattr(module, name + "_bias") if module.has_bias else None for name in names)
    ids = ids.to(torch.int32)
    if not module.is_concatenated:
        if 0 < 2 * ids.numel() <= len(w13):  # each slot gets a copy of its expert
            at = ids.flatten().clamp(0, len(w13) - 1)
            w13, w2, bias13, bias2 = (t if t is None else t[at] for t in (w13, w2, bias13, bias2))
            inside = (ids >= 0) & (ids < module.num_experts)
            slots = torch.arange(ids.numel(), dtype=torch.int32, device=ids.device).view_as(ids)
            ids = torch.where(inside, slots, -1)
        w13 = _separated(w13, 2 if module.is_transposed else 1)
        bias13 = bias13 if bias13 is None else _separated(bias13, 1)
    out = anyop.fused_moe(
        x.to(w13.dtype).contiguous(), w13.contiguous(), w2.contiguous(), weights.float().contiguous(),
        ids.contiguous(), bias13, bias2, activation=gate.activation, alpha=gate.alpha,
        limit=gate.limit, transposed=int(module.is_transposed),
    )  # fmt: skip
    return out.to(x.dtype)


def _separated(interleaved: Tensor, dim: int) -> Tensor:
    """Gates first, then ups, of gate, up, gate, up and so on."""
    return torch.cat(interleaved.unflatten(dim, (-1, 2)).unbind(dim + 1), dim)


@functools.cache
def _log_once(name: str, reason: str | None) -> None:
    _LOGGER.warning("fused_moe: %s uses transformers' grouped_mm: %s", name, reason)
