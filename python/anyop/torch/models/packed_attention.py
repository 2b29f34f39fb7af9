# SPDX-License-Identifier: Apache-2.0
"""anyop's attention in continuous batching of transformers: sequences one behind the other, by attention_varlen.

transformers gives them without a mask to implementations with "flash" in their name, and refuses all names but its own
when a batch begins. So a model whose attention is anyop's has another name of it while batches run.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import anyop

NAME = "anyop_flash"


def register(names: tuple[str, ...]) -> None:
    """Lets models whose attention is one of names run batches, where transformers has them for other names."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.generation.continuous_batching.continuous_api import (
            ContinuousBatchingManager as Manager,
        )

        switch = Manager.switch_to_cb_friendly_attn
    except (ImportError, AttributeError):  # older: "paged|..." names of its own alone
        return
    if hasattr(switch, "_anyop"):
        return

    @functools.wraps(switch)
    def switched(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        name = model.config._attn_implementation
        if name in names:
            model.config._attn_implementation = NAME
            self._original_attn_impl = name  # which its stop() sets again
        switch(self, model, *args, **kwargs)

    switched._anyop = True  # type: ignore[attr-defined]
    Manager.switch_to_cb_friendly_attn = switched
    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, no_mask)


def no_mask(*_: Any, **__: Any) -> None:
    """Where sequences begin says all."""


def forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query (1, H, S, D) of all sequences, key and value (1, G, T, D) of their caches; the result is (1, S, H, E)."""
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        raise ValueError(
            "attn_implementation='anyop': while continuous batching runs, the model takes the calls of its batches "
            "alone"
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    out = anyop.attention_varlen(
        q,
        k,
        v,
        cu_seq_lens_q,
        cu_seq_lens_k,
        scale=scaling,
        causal=bool(causal),
        window_left=(sliding_window or 0) - 1,
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
    )
    return out[None], None
