# SPDX-License-Identifier: Apache-2.0
"""Makes a Qwen3: random weights of a size, or a checkpoint from a folder; and token numbers to feed it."""

from __future__ import annotations

import argparse
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import torch

from . import InputError

try:
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
except ImportError as error:
    raise InputError(f"needs transformers 4.56 or later ({error})") from None

SIZES = {
    "tiny": {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "initializer_range": 0.1,  # tokens differ
    },
    "0.6b": {  # that of Qwen/Qwen3-0.6B
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
}
DTYPES = {"tiny": "float32", "0.6b": "bfloat16"}


def make(options: argparse.Namespace) -> Qwen3ForCausalLM:
    """In memory of the CPU, the same weights at each call. Raises InputError for a folder without a Qwen3."""
    if options.model:
        return load(options.model, options.dtype)
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES[options.size], tie_word_embeddings=True)  # embedding and head
    return AutoModelForCausalLM.from_config(config, dtype=options.dtype or DTYPES[options.size])


def load(folder: str, dtype: str | None) -> Qwen3ForCausalLM:
    """A checkpoint as transformers saves it; dtype None keeps that of its weights."""
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise InputError(f"{folder} is no folder with a config.json and weights")
    try:
        kind = AutoConfig.from_pretrained(folder, local_files_only=True).model_type
        if kind == "qwen3":
            return Qwen3ForCausalLM.from_pretrained(
                folder, local_files_only=True, dtype=dtype or "auto"
            )
    except (OSError, ValueError) as error:
        raise InputError(f"no model in {folder}: {str(error).strip().splitlines()[0]}") from None
    raise InputError(f"{folder} holds a model of type {kind}, expected qwen3")


def numbers(model: Qwen3ForCausalLM, rows: int, length: int) -> torch.Tensor:
    """Random tokens, the same at each call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (rows, length), generator=generator)


def describe(model: Qwen3ForCausalLM) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    layers, dtype = model.config.num_hidden_layers, str(model.dtype).removeprefix("torch.")
    return f"{layers} layers, {count:,} parameters, {dtype}"
