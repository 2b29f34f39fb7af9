# SPDX-License-Identifier: Apache-2.0
"""Sets attn_implementation="anyop" of a model of transformers, where that computes the same, and takes it back."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

import anyop
from anyop._routes import unrecorded
from anyop.torch import attention
from anyop.torch.models import gains

OURS = (attention.NAME, attention.WITH_DROPOUT)
KIND = "attention"
# Of float32: sums in another order. Of bfloat16: transformers rounds probabilities and sums.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


class OtherAttention(NamedTuple):
    """Configurations whose attention was changed, with what they had."""

    configs: list[tuple[Any, str]]

    def undo(self) -> None:
        # A configuration comes before its parts, which its setter sets too.
        for config, name in self.configs:
            if config._attn_implementation in OURS:
                config._attn_implementation = name


def replace_attention(model: torch.nn.Module, replaced: Any) -> None:
    """Set the attention of each model of transformers in model; replaced is told."""
    done: set[int] = set()
    for part in model.modules():
        if not _is_of_transformers(part) or id(part) in done:
            continue
        done.update(map(id, part.modules()))
        found = _layers(part)
        if not found or part.config._attn_implementation in OURS:
            continue
        reason = _refusal(part, found)
        if reason is None and replaced.timed:
            reason = replaced.reason(KIND, gain(part, found[0]))
        reason = reason or _set(part, replaced, len(found))
        if reason:
            replaced.left[KIND, reason] += len(found)


def _is_of_transformers(part: torch.nn.Module) -> bool:
    return callable(getattr(part, "set_attn_implementation", None)) and hasattr(part, "config")


def _layers(part: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that ask the configuration which function to call."""
    return [m for m in part.modules() if hasattr(m, "is_causal") and _eager(m) is not None]


def _eager(module: torch.nn.Module) -> Any:
    """The model's own formula, which stands beside its class."""
    return getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)


def _refusal(part: Any, found: list[torch.nn.Module]) -> str | None:
    if getattr(part.config, "output_attentions", False):
        return "the model returns attention weights"
    if not {p.device.type for p in part.parameters()} <= {"meta", *anyop.backends("attention")}:
        return "no kernel of attention on the model's device"
    kinds = {type(layer): layer for layer in found}
    wrong = [kind.__name__ for kind, layer in kinds.items() if not agrees(layer)]
    return f"{', '.join(wrong)} does not compute attention" if wrong else None


def _set(part: Any, replaced: Any, count: int) -> str | None:
    models = [m for m in part.modules() if _is_of_transformers(m)]
    before = list(
        {id(m.config): (m.config, m.config._attn_implementation) for m in models}.values()
    )
    change = OtherAttention(before)
    try:
        attention.register()
        part.set_attn_implementation(OURS[_has_dropout(part.config)])
    except (ImportError, ValueError) as error:
        change.undo()
        return str(error)
    if part.config._attn_implementation not in OURS:
        change.undo()
        return "the model's class does not let it be set"
    replaced.add(KIND, change, count)
    return None


def _has_dropout(config: Any) -> bool:
    values = [value for name, value in config.to_dict().items() if "drop" in name]
    return any(isinstance(value, float) and value > 0 for value in values)


@unrecorded()
@torch.no_grad()
def agrees(module: torch.nn.Module) -> bool:
    """Whether our function gives what the model's own gives, on random numbers, with what the module says of itself."""
    try:
        with torch.autocast("cpu", enabled=False):
            return all(_agrees(module, dtype, limit) for dtype, limit in TOLERANCE.items())
    except Exception:  # the function is somebody else's and may raise anything
        return False


def gain(part: Any, layer: Any) -> gains.Gain | None:
    """Of a token that sees 1,024 keys, and of a prompt."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    like = gains.like_of(part)
    name = part.config._attn_implementation
    H = int(getattr(part.config, "num_attention_heads", 0) or 8)

    def calls(rows: int) -> gains.Calls:
        own = _eager(layer) if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        keys = 1024 if rows == 1 else rows
        q, k, v, more = random_call(layer, like.dtype, rows, keys, like.device, H)
        return (
            lambda: own(layer, q, k, v, None, **more),
            lambda: attention.forward(layer, q, k, v, None, **more),
        )

    return gains.gain(KIND, (type(layer), name, H, like.dtype), calls, like.device)


def _agrees(module: Any, dtype: torch.dtype, limit: float) -> bool:
    q, k, v, more = random_call(module, dtype, queries=5, keys=9)
    seen = torch.ones(5, 9, dtype=torch.bool, device="cpu").tril(4)[None, None]
    added = torch.zeros(seen.shape, dtype=dtype, device="cpu").masked_fill(
        ~seen, torch.finfo(dtype).min
    )
    expected = _eager(module)(module, q, k, v, added, **more)[0]
    found = attention.forward(module, q, k, v, seen, **more)[0]
    same = found.dtype is expected.dtype and found.shape == expected.shape
    return same and torch.allclose(found, expected, rtol=limit, atol=limit)


def random_call(
    module: Any, dtype: torch.dtype, queries: int, keys: int, device: Any = "cpu", H: int = 0
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Queries, keys, values and options of a call of the module's, with few heads where H is not given."""
    sinks = getattr(module, "sinks", None)
    groups = int(getattr(module, "num_key_value_groups", 1))
    D = int(getattr(module, "head_dim", None) or getattr(module, "head_size", None) or 16)
    H = (H or 2 * groups) if sinks is None else sinks.numel()

    generator = torch.Generator().manual_seed(0)

    def heads(count: int, tokens: int) -> Tensor:
        random = torch.randn(1, tokens, count, D, generator=generator, device="cpu")
        return random.to(device, dtype).transpose(1, 2)

    more: dict[str, Any] = {"scaling": getattr(module, "scaling", None) or D**-0.5}
    if getattr(module, "attn_logit_softcapping", None):
        more["softcap"] = module.attn_logit_softcapping
    if sinks is not None:
        more["s_aux"] = sinks.detach().to(device, dtype)
    return heads(H, queries), heads(H // groups, keys), heads(H // groups, keys), more
