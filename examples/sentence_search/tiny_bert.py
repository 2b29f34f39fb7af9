# SPDX-License-Identifier: Apache-2.0
"""Writes the folder of a small BERT with random weights, for tests that need no real model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = (
    *("measure", "time", "of", "small", "code", "read", "write", "file", "sort", "list", "hash"),
    *("text", "open", "the", "a", "to", "and"),
)
CONFIG = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}


def write_tiny_bert(folder: Path, dtype=np.float32, prefix: str = "", **settings) -> Path:
    """A folder with config.json (CONFIG changed by settings), tokenizer.json, model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder / "tokenizer.json")
    config = CONFIG | {"vocab_size": vocabulary} | settings
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {prefix + name: tensor.astype(dtype) for name, tensor in weights(config).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_tokenizer(path: Path) -> int:
    """Words, letters and digits; pads to 128 and truncates there, as published files do."""
    letters = [chr(c) for c in range(ord("!"), 127)]
    pieces = [*SPECIAL, *WORDS, *letters, *("##" + letter for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(max_length=128)
    tokenizer.save(str(path))
    return len(vocabulary)


def weights(config: dict) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    D, M = config["hidden_size"], config["intermediate_size"]
    matrices = {
        "embeddings.word_embeddings": (config["vocab_size"], D),
        "embeddings.position_embeddings": (config["max_position_embeddings"], D),
        "embeddings.token_type_embeddings": (config["type_vocab_size"], D),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            matrices[f"{prefix}attention.{part}"] = (D, D)
        matrices |= {prefix + "intermediate.dense": (M, D), prefix + "output.dense": (D, M)}
        norms += [prefix + "attention.output.LayerNorm", prefix + "output.LayerNorm"]
    tensors = {}
    for name, shape in matrices.items():
        tensors[name + ".weight"] = random.normal(0, 0.3, shape)
        if "embeddings" not in name:
            tensors[name + ".bias"] = random.normal(0, 0.1, shape[:1])
    for name in norms:
        tensors[name + ".weight"] = random.normal(1, 0.1, D)
        tensors[name + ".bias"] = random.normal(0, 0.1, D)
    return tensors
