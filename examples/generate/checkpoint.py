# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face folder, in safetensors files: all is checked before any memory is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401, bfloat16 for NumPy
import numpy as np
from safetensors import SafetensorError, safe_open

from . import InputError
from .config import Config, Layer, read_json

DTYPES = ("F32", "F16", "BF16")
PIECE = 1 << 16  # elements that are looked at at once, so that all of it happens in the cache


class Tensor(NamedTuple):
    path: Path
    file: Any  # open, its tensors are read when they are used
    name: str

    def read(self) -> np.ndarray:
        return self.file.get_tensor(self.name)


def read_weights(folder: Path, config: Config) -> dict[str, Tensor]:
    """All tensors by name, with the shapes that config asks for and finite numbers."""
    found: dict[str, Tensor] = {}
    for path in files_of(folder):
        try:
            file = safe_open(path, framework="numpy")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} is no whole safetensors file ({error})") from None
        found |= {name: Tensor(path, file, name) for name in file.keys()}  # noqa: SIM118
    wanted = {
        n: shape for parts in layout(config) for own in parts.values() for n, shape in own.items()
    }
    for name in wanted:
        if name not in found:
            raise InputError(f"{folder}: no file has the tensor {name}")
    for name, (path, file, _) in found.items():
        if name in wanted:
            entry = file.get_slice(name)
            dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
            if dtype not in DTYPES:
                raise InputError(f"{path}: {name} is {dtype}, expected one of {', '.join(DTYPES)}")
            if shape != wanted[name]:
                raise InputError(
                    f"{path}: {name} has shape {shape}, config.json asks for {wanted[name]}"
                )
        elif not name.endswith("inv_freq") and not (config.tied and name == "lm_head.weight"):
            raise InputError(f"{path}: {name} has no place in a {config.family} model")
    for name in wanted:
        array = found[name].read().reshape(-1)
        bits, infinite = (x.view(f"u{x.itemsize}") for x in (array, np.array(np.inf, array.dtype)))
        for begin in range(0, len(bits), PIECE):
            if (bits[begin : begin + PIECE] & infinite == infinite).any():
                raise InputError(f"{found[name].path}: {name} holds a NaN or an infinite number")
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


Part = dict[str, tuple[int, ...]]  # names and shapes of the tensors that a weight is joined of


def layout(config: Config) -> list[dict[str, Part]]:
    """Parts by what the model calls its weights: the outer ones first, then those of each layer."""
    V, D = config.V, config.D
    outer = {"embed": {"model.embed_tokens": (V, D)}, "norm": {"model.norm": (D,)}}
    made = [outer if config.tied else outer | {"head": {"lm_head": (V, D)}}]
    for number, layer in enumerate(config.layers):
        parts = attention(config) | feed_forward(config, layer)
        before = f"model.layers.{number}."
        made += [{own: {before + n: shape for n, shape in p.items()} for own, p in parts.items()}]
    ending = {True: ".bias", False: ".weight"}
    return [
        {own: {n + ending["bias" in own]: shape for n, shape in p.items()} for own, p in parts.items()}
        for parts in made
    ]  # fmt: skip


def attention(config: Config) -> dict[str, Part]:
    """And the norms of a layer, among which one name means two things."""
    D, Q, K = config.D, config.H * config.HD, config.G * config.HD
    first, after, last = "input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
    norms = {
        "before": {"attention_norm": first, "ffn_norm": after},
        "after": {"attention_after": after, "ffn_after": last},
        "both": {"attention_norm": first, "attention_after": after,
                 "ffn_norm": "pre_feedforward_layernorm", "ffn_after": last},
    }[config.norms]  # fmt: skip
    made: dict[str, Part] = {own: {name: (D,)} for own, name in norms.items()}
    each = {"qkv": Q + 2 * K} if config.joined else {"q": Q, "k": K, "v": K}
    made["qkv"] = {f"self_attn.{x}_proj": (n, D) for x, n in each.items()}
    made["out"] = {"self_attn.o_proj": (D, Q)}
    if config.bias:
        made["qkv_bias"] = {name: shape[:1] for name, shape in made["qkv"].items()}
    if "o" in config.bias:
        made["out_bias"] = {"self_attn.o_proj": (D,)}
    if config.qk_norm:
        for x, n in (("q", Q), ("k", K)):
            made[f"{x}_norm"] = {
                f"self_attn.{x}_norm": (config.HD if config.qk_norm == "head" else n,)
            }
    return made


def feed_forward(config: Config, layer: Layer) -> dict[str, Part]:
    D, F, FE = config.D, config.F, config.FE
    if layer.experts:
        names = [f"mlp.experts.{e}." for e in range(layer.experts)]
        both = {f"{e}{x}_proj": (FE, D) for e in names for x in ("gate", "up")}
        down = {f"{e}down_proj": (D, FE) for e in names}
        return {"router": {"mlp.gate": (layer.experts, D)}, "w13": both, "w2": down}
    each = {"gate_up": 2 * F} if config.joined else {"gate": F, "up": F}
    both = {f"mlp.{x}_proj": (n, D) for x, n in each.items()}
    return {"gate_up": both, "down": {"mlp.down_proj": (D, F)}}
