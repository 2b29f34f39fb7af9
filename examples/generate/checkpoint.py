# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face folder, mapped from its safetensors files: all is checked before any memory is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import InputError
from .config import Config, read_json

# bfloat16 as its bits: NumPy has no such dtype.
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
# The bits that are all set in what is not finite.
INFINITE = {
    "F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)
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
    wanted = shapes(config)
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
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if 8 + length >= size:
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
    begin, end = entry["data_offsets"]
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if not 0 <= begin <= end <= len(data) or end - begin != dtype.itemsize * np.prod(
        shape, dtype=int
    ):
        raise InputError(f"{path}: {name} has bytes {begin} to {end} of {len(data)}, for {shape}")
    return Tensor(path, entry["dtype"], data[begin:end].view(dtype).reshape(shape))


def refuse_infinite(name: str, tensor: Tensor) -> None:
    unsigned, infinite = INFINITE[tensor.dtype]
    bits = tensor.values.reshape(-1).view(unsigned)
    for begin in range(0, len(bits), PIECE):
        if (bits[begin : begin + PIECE] & infinite == infinite).any():
            raise InputError(f"{tensor.file}: {name} holds a NaN or an infinite number")


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The tensors that a family has, by the names that transformers gives them."""
    D, F, Q, K = config.D, config.F, config.H * config.HD, config.G * config.HD
    made = {"model.embed_tokens.weight": (config.V, D), "model.norm.weight": (D,)}
    if not config.tied:
        made["lm_head.weight"] = (config.V, D)
    norms = {
        "before": ["input_layernorm", "post_attention_layernorm"],
        "after": ["post_attention_layernorm", "post_feedforward_layernorm"],
    }
    norms["both"] = [*norms["before"], "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    block: dict[str, tuple[int, ...]] = {f"{name}.weight": (D,) for name in norms[config.norms]}
    block |= {"self_attn.o_proj.weight": (D, Q), "mlp.down_proj.weight": (D, F)}
    if config.family == "phi3":
        block |= {
            "self_attn.qkv_proj.weight": (Q + 2 * K, D),
            "mlp.gate_up_proj.weight": (2 * F, D),
        }
    else:
        block |= {f"self_attn.{x}_proj.weight": (n, D) for x, n in zip("qkv", (Q, K, K))}
        block |= {f"mlp.{name}_proj.weight": (F, D) for name in ("gate", "up")}
    sizes = {"q": Q, "k": K, "v": K, "o": D}
    block |= {f"self_attn.{name}_proj.bias": (sizes[name],) for name in config.bias}
    if config.qk_norm:
        q, k = (config.HD, config.HD) if config.qk_norm == "head" else (Q, K)
        block |= {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (k,)}
    for layer in range(len(config.layers)):
        made |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return made


def arranged(
    config: Config, found: dict[str, Tensor]
) -> tuple[dict[str, list[Tensor]], list[dict]]:
    """What the model calls its weights, with the tensors that each is joined of: outer ones, and those of layers."""
    outer = {"embed": ["model.embed_tokens.weight"], "norm": ["model.norm.weight"]}
    outer["head"] = outer["embed"] if config.tied else ["lm_head.weight"]
    after = "post_attention_layernorm.weight"  # the one name that means two things
    names = {
        "attention_norm": ["input_layernorm.weight"],
        "attention_after": [after] if config.norms != "before" else [],
        "ffn_norm": [after] if config.norms == "before" else ["pre_feedforward_layernorm.weight"],
        "ffn_after": ["post_feedforward_layernorm.weight"],
        "qkv": [f"self_attn.{x}_proj.weight" for x in ("q", "k", "v", "qkv")],
        "qkv_bias": [f"self_attn.{x}_proj.bias" for x in "qkv"],
        "q_norm": ["self_attn.q_norm.weight"],
        "k_norm": ["self_attn.k_norm.weight"],
        "out": ["self_attn.o_proj.weight"],
        "out_bias": ["self_attn.o_proj.bias"],
        "gate_up": [f"mlp.{x}_proj.weight" for x in ("gate", "up", "gate_up")],
        "down": ["mlp.down_proj.weight"],
    }

    def joined(parts: dict[str, list[str]], prefix: str) -> dict[str, list[Tensor]]:
        there = {
            key: [found[prefix + n] for n in own if prefix + n in found]
            for key, own in parts.items()
        }
        return {key: tensors for key, tensors in there.items() if tensors}

    layers = range(len(config.layers))
    return joined(outer, ""), [joined(names, f"model.layers.{i}.") for i in layers]
