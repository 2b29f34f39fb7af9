# SPDX-License-Identifier: Apache-2.0
"""A byte-level Llama trains on this project's own pages: its losses, and the memory of a step; for tests."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

PAGES = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))


def pages() -> torch.Tensor:
    """Their bytes."""
    return torch.tensor(list(b"".join(page.read_bytes() for page in PAGES)))


def llama(D: int, length: int, implementation: str = "sdpa", V: int = 256, layers: int = 2):
    """The same weights each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=D, intermediate_size=2 * D, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=length,
        attn_implementation=implementation,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def losses(model, text, rows: int, length: int, steps: int, rate: float, is_half: bool = False):
    """Of steps of AdamW, each on some pieces of the text."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    draw, found = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        starts = torch.randint(0, len(text) - length, (rows,), generator=draw).tolist()
        tokens = torch.stack([text[at : at + length] for at in starts])
        with torch.autocast(text.device.type, torch.bfloat16, enabled=is_half):
            loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found).float().cpu()


def step_bytes(model, rows: int, length: int) -> int:
    """The most memory, of the process or the GPU, that forward and backward had beyond what there was before."""
    device = next(model.parameters()).device
    tokens = torch.randint(model.config.vocab_size, (rows, length), device=device)

    def step(tokens=tokens):
        model(input_ids=tokens, labels=tokens).loss.backward()

    step(tokens[:1, :8])  # gradients and libraries are there from now on
    if device.type == "cuda":
        # What torch's allocator has taken it keeps, as anyop's does.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        step()
        torch.cuda.synchronize()
        return before - torch.cuda.mem_get_info()[0]
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = _resident("VmRSS")
    step()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
