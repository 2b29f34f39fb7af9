# SPDX-License-Identifier: Apache-2.0
"""Folders with tiny random models of each family, as transformers writes them; for tests."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

SIZES = {
    "vocab_size": 264,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
}
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
WINDOWS = {"sliding_window": 9, "layer_types": ["full_attention"] + ["sliding_attention"] * 2}
HALF = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}
ALL_HEADS = {"num_key_value_heads": None}  # as many of keys as of queries
UNTIED = {"tie_word_embeddings": False}  # of Gemma: random ones would only repeat the last token
# Each family as it is, and what its models of several sizes differ in.
KINDS = {
    "llama": ("Llama", {}),
    "llama 3, biases": ("Llama", {"rope_parameters": LLAMA_3, "attention_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 9, "head_dim": 16}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": ("Qwen2", {"use_sliding_window": True, **WINDOWS}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, heads of 64": ("Qwen3", {"head_dim": 64, "num_attention_heads": 6}),
    "qwen3 moe": (
        "Qwen3Moe",
        {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
         "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "gemma2": ("Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 9, **UNTIED}),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "query_pre_attn_scalar": 24, **WINDOWS, **UNTIED}),
    "phi3": ("Phi3", {"rope_parameters": HALF}),
    "granite": (
        "Granite",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.7,
         "logits_scaling": 2.0},
    ),
    "olmo": ("Olmo", ALL_HEADS),
    "olmo2": ("Olmo2", {}),
    "phi": ("Phi", {"rope_parameters": HALF, "hidden_act": "gelu_new"}),
    "gpt2": ("GPT2", {"hidden_size": 128, "intermediate_size": None, **ALL_HEADS}),
    "gpt_neox": ("GPTNeoX", {"hidden_size": 64, "num_attention_heads": 2, **ALL_HEADS}),
    "gpt_neox, in turn": (
        "GPTNeoX",
        {"hidden_size": 96, "use_parallel_residual": False, "attention_bias": False, **ALL_HEADS},
    ),
}  # fmt: skip


def tiny_model(kind: str):
    """The same weights each time, large enough that tokens differ."""
    name, more = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**SIZES | more)
    torch.manual_seed(0)
    with torch.no_grad():
        made = transformers.AutoModelForCausalLM.from_config(config).eval()
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3 if weight.shape[0] == SIZES["vocab_size"] else 0.15)
            else:
                weight.add_(torch.randn_like(weight) * 0.2)
    return made


def write_tiny(kind: str, folder: Path, **options):
    """The model, which lies in the folder too."""
    made = tiny_model(kind)
    made.save_pretrained(folder, **options)
    shutil.copy(Path(__file__).parent / "small" / "tokenizer.json", folder)
    return made
