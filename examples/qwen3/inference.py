# SPDX-License-Identifier: Apache-2.0
"""Logits of a prompt and tokens behind it, greedy and sampled, with the time they took."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def generate(model, prompt: torch.Tensor, count: int, sample: bool = False) -> torch.Tensor:
    """So many tokens behind each row of the prompt."""
    how = {"temperature": 0.9, "top_k": 40, "top_p": 0.95} if sample else {}
    others = dict.fromkeys(("temperature", "top_k", "top_p"))  # a checkpoint may bring its own
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        min_new_tokens=count,
        pad_token_id=0,
        do_sample=sample,
        **{**others, **how},
    )
    return found[:, prompt.shape[1] :]


@torch.inference_mode()
def logits(model, prompt: torch.Tensor) -> torch.Tensor:
    return model(prompt).logits.float().cpu()


def infer(model, prompt: torch.Tensor, count: int, wait: Callable[[], None]) -> dict:
    """Both ways to choose tokens; wait returns when the device is done."""
    model.eval()
    found = {"logits": logits(model, prompt)}
    for name in ("greedy", "sampled"):
        torch.manual_seed(1)
        wait()
        begin = time.perf_counter()
        tokens = generate(model, prompt, count, sample=name == "sampled")
        wait()
        found[f"{name}_per_s"] = tokens.numel() / (time.perf_counter() - begin)
        found[name] = tokens.cpu()
    return found
