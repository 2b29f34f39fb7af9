# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face folder, mapped from its safetensors files: all is checked before any memory is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import InputError
from .config import Config, Layer, read_json

# NumPy's dtype (bfloat16 as its bits), and the bits that are all set in what is not finite.
DTYPES = {
    "F32": (np.float32, 0x7F800000), "F16": (np.float16, 0x7C00), "BF16": (np.uint16, 0x7F80)
}  # fmt: skip
PIECE = 1 << 16  # elements that are looked at at once, so that all of it happens in the cache


class Tensor(NamedTuple):
    file: Path
    dtype: str
    values: np.ndarray  # mapped: read from the file when they are used


def read_weights(folder: Path, config: Config) -> dict[str, Tensor]:
    """All tensors by name, with the shapes that config asks for and finite numbers."""
    found: dict[str, Tensor] = {}
    for path in files_of(folder):
        found |= read_file(path)
    wanted = dict(pair for part in layout(config) for own in part.values() for pair in own)
    for name, shape in wanted.items():
        if name not in found:
            raise InputError(f"{folder}: no file has the tensor {name}")
        file, _, values = found[name]
        if values.shape != shape:
            raise InputError(
                f"{file}: {name} has shape {values.shape}, config.json asks for {shape}"
            )
    for name in found.keys() - wanted.keys():
        if not name.endswith("inv_freq") and not (config.tied and name == "lm_head.weight"):
            raise InputError(f"{found[name].file}: {name} has no place in a {config.family} model")
    for name in wanted:
        refuse_infinite(name, found[name])
    return {name: found[name] for name in wanted}


def files_of(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        if not (folder / "model.safetensors").is_file():
            raise InputError(f"{folder} has neither model.safetensors nor {index.name}")
        return [folder / "model.safetensors"]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise InputError(f"{index}: weight_map does not name the file of each tensor")
    paths = [folder / name for name in sorted(set(names.values()))]
    for path in paths:
        if not path.is_file():
            lost = sorted(name for name, file in names.items() if file == path.name)
            raise InputError(f"{path} is missing: {lost[0]} and {len(lost) - 1} more are in it")
    return paths


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file: eight bytes say how long the JSON is that says where each of them lies."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if 8 + length >= path.stat().st_size:
                raise ValueError("it ends within its header")
            header = json.loads(file.read(length))
            data = np.memmap(path, np.uint8, "c", 8 + length)
        header.pop("__metadata__", None)
        return {name: mapped(path, name, data, entry) for name, entry in header.items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is no whole safetensors file ({error})") from None


def mapped(path: Path, name: str, data: np.ndarray, entry: dict) -> Tensor:
    if entry["dtype"] not in DTYPES:
        raise InputError(f"{path}: {name} is {entry['dtype']}, expected one of {', '.join(DTYPES)}")
    (begin, end), shape = entry["data_offsets"], tuple(entry["shape"])
    if not 0 <= begin <= end <= len(data):
        raise InputError(f"{path}: {name} has bytes {begin} to {end} of {len(data)}")
    values = data[begin:end].view(DTYPES[entry["dtype"]][0])
    return Tensor(path, entry["dtype"], values.reshape(shape))


def refuse_infinite(name: str, tensor: Tensor) -> None:
    infinite = DTYPES[tensor.dtype][1]
    bits = tensor.values.reshape(-1).view(f"u{tensor.values.itemsize}")
    for begin in range(0, len(bits), PIECE):
        if (bits[begin : begin + PIECE] & infinite == infinite).any():
            raise InputError(f"{tensor.file}: {name} holds a NaN or an infinite number")


def layout(config: Config) -> Iterator[dict[str, list[tuple[str, tuple[int, ...]]]]]:
    """What the model calls its weights, and names and shapes of the tensors that each is joined of.

    The outer ones first, then those of each layer.
    """
    outer = {
        "embed": [("model.embed_tokens.weight", (config.V, config.D))],
        "norm": [("model.norm.weight", (config.D,))],
    }
    yield outer if config.tied else outer | {"head": [("lm_head.weight", (config.V, config.D))]}
    for number, layer in enumerate(config.layers):
        parts = {**attention(config), **feed_forward(config, layer)}
        before = f"model.layers.{number}."
        yield {own: [(before + n, shape) for n, shape in part] for own, part in parts.items()}


def attention(config: Config) -> dict:
    """And the norms of a layer, among which one name means two things."""
    D, Q, K = config.D, config.H * config.HD, config.G * config.HD
    after = "post_attention_layernorm"
    norms = {
        "before": {"attention_norm": "input_layernorm", "ffn_norm": after},
        "after": {"attention_after": after, "ffn_after": "post_feedforward_layernorm"},
        "both": {
            "attention_norm": "input_layernorm", "attention_after": after,
            "ffn_norm": "pre_feedforward_layernorm", "ffn_after": "post_feedforward_layernorm",
        },
    }[config.norms]  # fmt: skip
    made = {own: [(f"{name}.weight", (D,))] for own, name in norms.items()}
    each = [("qkv", Q + 2 * K)] if config.family == "phi3" else [("q", Q), ("k", K), ("v", K)]
    made["qkv"] = [(f"self_attn.{x}_proj.weight", (n, D)) for x, n in each]
    made["out"] = [("self_attn.o_proj.weight", (D, Q))]
    if config.bias:
        made["qkv_bias"] = [(f"self_attn.{x}_proj.bias", (n,)) for x, n in each]
    if "o" in config.bias:
        made["out_bias"] = [("self_attn.o_proj.bias", (D,))]
    if config.qk_norm:
        for x, n in (("q", Q), ("k", K)):
            n = config.HD if config.qk_norm == "head" else n
            made[f"{x}_norm"] = [(f"self_attn.{x}_norm.weight", (n,))]
    return made


def feed_forward(config: Config, layer: Layer) -> dict:
    D, F, FE = config.D, config.F, config.FE
    if layer.experts:
        names = [f"mlp.experts.{e}." for e in range(layer.experts)]
        both = [(f"{e}{x}_proj.weight", (FE, D)) for e in names for x in ("gate", "up")]
        down = [(f"{e}down_proj.weight", (D, FE)) for e in names]
        return {"router": [("mlp.gate.weight", (layer.experts, D))], "w13": both, "w2": down}
    each = [("gate_up", 2 * F)] if config.family == "phi3" else [("gate", F), ("up", F)]
    both = [(f"mlp.{x}_proj.weight", (n, D)) for x, n in each]
    return {"gate_up": both, "down": [("mlp.down_proj.weight", (D, F))]}
