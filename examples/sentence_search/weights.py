# SPDX-License-Identifier: Apache-2.0
"""Reads a BERT's configuration and weights, and names what is missing or unsupported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError, safe_open

from . import InputError
from .folder import ModelFolder

DEFAULT_LIMIT = 256  # tokens, where the folder does not state one
# Name in config.json: operator, and its further arguments.
ACTIVATIONS = {
    "gelu": ("gelu", {}),
    "gelu_new": ("gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("gelu", {"approximate": "tanh"}),
    "relu": ("relu", {}),
}
MODULES = {"Transformer", "Pooling", "Normalize"}
POOLINGS = {"mean", "cls"}
WEIGHT_DTYPES = {"F32", "F16", "BF16", "F64"}


@dataclass(frozen=True)
class Config:
    D: int  # features
    H: int  # heads
    M: int  # features in the middle of the feed-forward part
    V: int  # words
    P: int  # positions
    layers: int
    types: int
    eps: float
    activation: str
    pad_id: int
    limit: int
    pooling: str


def read_config(folder: ModelFolder) -> Config:
    """Raises InputError naming the first setting that is missing or not supported."""
    raw = folder.read_json("config.json")
    if not isinstance(raw, dict):
        raise InputError("config.json of the model is not an object")
    _refuse_unless(raw, "model_type", {"bert"})
    _refuse_unless(raw, "position_embedding_type", {"absolute"}, default="absolute")
    _refuse_unless(raw, "is_decoder", {False}, default=False)
    _refuse_unless(raw, "hidden_act", set(ACTIVATIONS))
    config = Config(
        D=_positive(raw, "hidden_size"),
        H=_positive(raw, "num_attention_heads"),
        M=_positive(raw, "intermediate_size"),
        V=_positive(raw, "vocab_size"),
        P=_positive(raw, "max_position_embeddings"),
        layers=_positive(raw, "num_hidden_layers"),
        types=_positive(raw, "type_vocab_size", default=2),
        eps=_eps(raw),
        activation=raw["hidden_act"],
        pad_id=_pad_id(raw),
        limit=_limit(folder, _positive(raw, "max_position_embeddings")),
        pooling=_pooling(folder),
    )
    if config.D % config.H:
        raise InputError(f"config.json: hidden_size {config.D} is no multiple of {config.H} heads")
    return config


def _refuse_unless(raw: dict, key: str, supported: set, default=None) -> None:
    found = raw.get(key, default)
    if not isinstance(found, (str, bool)) or found not in supported:
        names = ", ".join(sorted(map(str, supported)))
        raise InputError(f"config.json: {key} is {found!r}, supported: {names}")


def _positive(raw: dict, key: str, default=None) -> int:
    found = raw.get(key, default)
    if type(found) is not int or found < 1:
        raise InputError(f"config.json: {key} is {found!r}, expected a positive integer")
    return found


def _eps(raw: dict) -> float:
    eps = raw.get("layer_norm_eps", 1e-12)
    if type(eps) not in (int, float) or not 0 <= eps < 1:
        raise InputError(f"config.json: layer_norm_eps is {eps!r}, expected a number in [0, 1)")
    return float(eps)


def _pad_id(raw: dict) -> int:
    pad_id = raw.get("pad_token_id", 0)
    if type(pad_id) is not int or not 0 <= pad_id < raw["vocab_size"]:
        raise InputError(f"config.json: pad_token_id is {pad_id!r}, expected one of the words")
    return pad_id


def _limit(folder: ModelFolder, positions: int) -> int:
    name = "sentence_bert_config.json"
    raw = folder.read_json(name) if folder.has(name) else {}
    limit = raw.get("max_seq_length") if isinstance(raw, dict) else None
    if limit is None:
        limit = DEFAULT_LIMIT
    if type(limit) is not int or limit < 1:
        raise InputError(f"{name}: max_seq_length is {limit!r}, expected a positive integer")
    return min(limit, positions)


def _pooling(folder: ModelFolder) -> str:
    """How token vectors become one: 'mean' where the folder does not say."""
    modules = folder.read_json("modules.json") if folder.has("modules.json") else []
    for module in modules:
        kind = str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else module
        if kind not in MODULES:
            raise InputError(f"modules.json: {kind} is not supported, only {sorted(MODULES)}")
    name = "1_Pooling/config.json"
    raw = folder.read_json(name) if folder.has(name) else {"pooling_mode": "mean"}
    raw = raw if isinstance(raw, dict) else {}
    names = {"mean": "mean_tokens", "cls": "cls_token"}
    flags = [key.removeprefix("pooling_mode_") for key, on in raw.items() if on is True]
    flags = [key for key in flags if key != "include_prompt"]
    modes = [raw["pooling_mode"]] if "pooling_mode" in raw else flags
    for mode, flag in names.items():
        if modes in ([mode], [flag]):
            return mode
    raise InputError(f"{name}: pooling {modes} is not supported, only {sorted(POOLINGS)}")


def read_weights(folder: ModelFolder, config: Config) -> dict[str, np.ndarray]:
    """The float32 tensors of a BERT by their names in transformers, without a leading 'bert.'."""
    path = folder.verified("model.safetensors")
    try:
        with safe_open(path, framework="numpy") as file:
            return _read_tensors(file, _expected_shapes(config))
    except (SafetensorError, OSError, MemoryError) as error:
        raise InputError(f"model.safetensors cannot be read: {error}") from None


def _expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    D, M = config.D, config.M
    shapes = {
        "embeddings.word_embeddings.weight": (config.V, D),
        "embeddings.position_embeddings.weight": (config.P, D),
        "embeddings.token_type_embeddings.weight": (config.types, D),
    }
    norms, denses = ["embeddings.LayerNorm"], {}
    for layer in range(config.layers):
        prefix = f"encoder.layer.{layer}."
        norms += [prefix + "attention.output.LayerNorm", prefix + "output.LayerNorm"]
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            denses[f"{prefix}attention.{part}"] = (D, D)
        denses[prefix + "intermediate.dense"] = (M, D)
        denses[prefix + "output.dense"] = (D, M)
    for name in norms:
        shapes |= {f"{name}.weight": (D,), f"{name}.bias": (D,)}
    for name, shape in denses.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def _read_tensors(file, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    stored = set(file.keys())
    prefix = "bert." if "bert.embeddings.word_embeddings.weight" in stored else ""
    missing = [name for name in shapes if prefix + name not in stored]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"model.safetensors lacks {prefix}{missing[0]}{more}")
    return {name: _tensor(file, prefix + name, shape) for name, shape in shapes.items()}


def _tensor(file, name: str, shape: tuple[int, ...]) -> np.ndarray:
    stored = file.get_slice(name)
    found, dtype = tuple(stored.get_shape()), stored.get_dtype()
    if found != shape:
        raise InputError(f"model.safetensors: {name} has shape {found}, expected {shape}")
    if dtype not in WEIGHT_DTYPES:
        raise InputError(f"model.safetensors: {name} is {dtype}, supported: F32, F16, BF16, F64")
    try:
        tensor = file.get_tensor(name)
    except TypeError:  # NumPy knows bfloat16 only through ml_dtypes
        raise InputError(f"model.safetensors: {name} is {dtype}, which needs ml_dtypes") from None
    return tensor.astype(np.float32, copy=False)
