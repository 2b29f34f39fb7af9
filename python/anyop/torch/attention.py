# SPDX-License-Identifier: Apache-2.0
"""anyop's attention in Hugging Face transformers: ``register()``, then ``attn_implementation="anyop"``."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.models import packed_attention

NAME = "anyop"
WITH_DROPOUT = "anyop_with_dropout"  # what replace() sets where a model's attention has dropout
_PATTERN = "_anyop_pattern"  # of a mask: what it says, where causal, window and offset say as much


def register() -> None:
    """Makes ``attn_implementation="anyop"`` known to transformers (4.56 or newer), for every model that takes one.

    Sliding windows, soft-caps, sinks, position biases and groups of heads go to ``anyop.attention`` as they are, and
    nothing is repeated or copied for them. A mask that is a causal bound or a window is not read: the bound is given.
    Gradients are anyop's. Attention weights are not returned; dropout is refused with ValueError, gradients of position
    biases (T5 in training) with NotImplementedError.
    Continuous batching (``generate_batch``) runs ``anyop.attention_varlen``.

    Raises:
        ImportError: transformers is missing or older.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "anyop.torch.attention.register() needs transformers 4.56 or newer: pip install transformers"
        ) from error
    for name, function in ((NAME, forward), (WITH_DROPOUT, forward_with_dropout)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, mask)
    packed_attention.register((NAME, WITH_DROPOUT))


@dataclass(frozen=True)
class Pattern:
    """The keys that queries see, as arguments of anyop.attention."""

    causal: bool
    offset: int
    window_left: int

    def as_mask(self, queries: int, keys: int, device: torch.device) -> Tensor:
        places = torch.arange(queries, device=device)[:, None] + self.offset
        others = torch.arange(keys, device=device)
        seen = others <= places if self.causal else torch.ones_like(others <= places)
        return seen & (others >= places - self.window_left) if self.window_left >= 0 else seen


ALL = Pattern(causal=False, offset=0, window_left=-1)


def mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """What transformers makes for sdpa, with its Pattern where it has one, so that no layer needs to read it."""
    from transformers.masking_utils import sdpa_mask

    made = sdpa_mask(*args, **kwargs)
    if made is not None and not _is_recorded():
        offset, first = kwargs.get("q_offset", 0), kwargs.get("kv_offset", 0)
        setattr(made, _PATTERN, _pattern_of(made, int(offset - first), kwargs.get("local_size")))
    return made


def _is_recorded() -> bool:
    """What is read from tensors now would stand in a graph, or cannot be read."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _pattern_of(made: Tensor, offset: int, window: int | None) -> Pattern | None:
    queries, keys = made.shape[-2:]
    for pattern in (ALL, Pattern(True, offset, -1), Pattern(True, offset, (window or 0) - 1)):
        if torch.equal(made, pattern.as_mask(queries, keys, made.device).expand_as(made)):
            return pattern
    return None


def forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The interface of transformers: query (B, H, S, D), key and value of fewer heads; the result is (B, S, H, E).

    Without a mask a call of more than one query is causal from the top left, where the module is; the mask that
    ``mask`` made says all there is to a window.
    """
    if dropout > 0:
        raise ValueError(
            f"attn_implementation='anyop' has no dropout, and the model asks for {dropout}: set its attention dropout "
            "to 0, or take attn_implementation='sdpa'"
        )
    pattern = None if _is_recorded() else getattr(attention_mask, _PATTERN, None)
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        pattern = Pattern(bool(causal) and query.shape[2] > 1, 0, -1)
    seen = attention_mask if pattern is None else None
    pattern = pattern or ALL
    out = anyop.attention(
        query,
        key,
        value,
        seen if position_bias is None else _biased(position_bias, seen),
        scaling,
        pattern.causal,
        offset=pattern.offset,
        window_left=pattern.window_left,
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
    )
    return out.transpose(1, 2).contiguous(), None


def forward_with_dropout(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[Tensor, None]:
    """forward, but a call with dropout is transformers' sdpa, where that computes what is asked for."""
    if dropout > 0 and not any(more.get(name) is not None for name in ("softcap", "s_aux")):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        given = module, query, key, value, attention_mask
        return sdpa_attention_forward(*given, dropout=dropout, **more)[0], None
    return forward(module, query, key, value, attention_mask, dropout, **more)


def _biased(bias: Tensor, seen: Tensor | None) -> Tensor:
    if bias.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "attn_implementation='anyop' has no gradient of position biases: train this model with 'sdpa' or 'eager'"
        )
    if seen is None:
        return bias
    return bias.masked_fill(~seen, -torch.inf) if seen.dtype is torch.bool else bias + seen


def register_for_copies() -> None:
    """A pickled model that had its attention set finds the name again."""
    if "transformers" in sys.modules:
        with contextlib.suppress(ImportError):  # too old to have set it
            register()
