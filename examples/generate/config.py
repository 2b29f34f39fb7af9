# SPDX-License-Identifier: Apache-2.0
"""config.json of ten families as the sizes and the few differences that the model knows."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from . import InputError

GEMMA = {"norms": "both", "norm_offset": 1.0}
# What a family has by itself; what its config.json says comes before that.
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA, "gemma3_text": GEMMA | {"qk_norm": "head"}, "granite": {"scale": 1.0}, "llama": {}, "mistral": {},
    "olmo2": {"norms": "after", "qk_norm": "row"}, "phi3": {"joined": True}, "qwen2": {"bias": "qkv"},
    "qwen3": {"qk_norm": "head"}, "qwen3_moe": {"qk_norm": "head"},
}  # fmt: skip
# Layer i of those with windows sees all tokens; of other families none does.
SEES_ALL = {
    "gemma2": lambda i, raw: i % 2 == 1,
    "gemma3_text": lambda i, raw: (i + 1) % raw.get("sliding_window_pattern", 6) == 0,
    "qwen2": lambda i, raw: i < raw["max_window_layers"],
    "qwen3": lambda i, raw: i < raw["max_window_layers"],
}
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
REFUSED = ("mlp_bias", "use_bidirectional_attention", "quantization_config")
MIXTURE = ("num_experts", "moe_intermediate_size", "num_experts_per_tok")
MOST = 4096  # layers, or experts of one


@dataclass(frozen=True)
class Layer:
    kind: str  # of its positions: "full" or "sliding"
    window: int  # keys that a query sees, its own included; 0: all
    experts: int = 0  # of a mixture, in place of the feed-forward part


def setting(name: str, default: Any = MISSING) -> Any:
    """A number above 0 that config.json calls so."""
    return field(metadata={"name": name}, default=default)


@dataclass(frozen=True, kw_only=True)
class Config:
    family: str
    V: int = setting("vocab_size")  # words
    D: int = setting("hidden_size")  # features
    F: int = setting("intermediate_size")  # features inside the feed-forward part
    H: int = setting("num_attention_heads")  # heads of queries
    G: int = setting("num_key_value_heads", 0)  # heads of keys
    HD: int = setting("head_dim", 0)  # features of a head
    L: int = setting("num_hidden_layers")
    window: int = setting("sliding_window", 0)
    limit: int = setting("max_position_embeddings")  # tokens that the model was made for
    E: int = setting("num_experts", 0)
    FE: int = setting("moe_intermediate_size", 0)  # features inside an expert
    chosen: int = setting("num_experts_per_tok", 0)  # experts of a token
    eps: float = setting("rms_norm_eps")
    query_scalar: float = setting("query_pre_attn_scalar", 0)
    scale: float = setting("attention_multiplier", 0)  # of scores
    softcap: float = setting("attn_logit_softcapping", 0.0)  # of scores
    logit_cap: float = setting("final_logit_softcapping", 0.0)
    embed_scale: float = setting("embedding_multiplier", 1.0)
    residual_scale: float = setting("residual_multiplier", 1.0)
    logit_divisor: float = setting("logits_scaling", 1.0)
    layers: tuple[Layer, ...]
    rope: dict[str, dict]  # by kind of layer
    activation: str = "silu"
    bias: str = ""  # of products: "", "qkv" or "qkvo"
    joined: bool = False  # the folder's q, k, v are one matrix, and so are gate and up
    tied: bool = False  # the head is the embedding
    stops: frozenset[int] = frozenset()
    norms: str = "before"  # blocks; "after" them; "both"
    qk_norm: str = ""  # of queries and keys: each "head", or a token's whole "row"
    norm_offset: float = 0.0
    renormalize: bool = False  # weights of a token's experts sum to 1
    split_size: int = 0  # keys of a part of a long sequence on CUDA; 0: what the batch suggests
    whole_layers: bool = False  # a layer of a decoding step is one operator

    @property
    def has_plain_layers(self) -> bool:
        """Whether that operator computes what the layers do."""
        turned = {rope["partial_rotary_factor"] for rope in self.rope.values()}
        return (
            (self.norms, self.activation, self.norm_offset) == ("before", "silu", 0)
            and (self.softcap, self.residual_scale, turned) == (0, 1, {1.0})
            and self.qk_norm in ("", "head") and "o" not in self.bias
            and not any(layer.window or layer.experts for layer in self.layers)
        )  # fmt: skip


def read_config(folder: Path) -> Config:
    path, chat = folder / "config.json", folder / "generation_config.json"
    raw = {name: value for name, value in read_json(path).items() if value is not None}
    if chat.exists():  # it may have more tokens that stop
        raw |= {k: v for k, v in read_json(chat).items() if k == "eos_token_id"}
    try:
        with np.errstate(all="raise", under="ignore"):
            config = config_of(raw)
            for kind in config.rope:
                rope_table(config, kind, 2)
        return config
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except KeyError as error:
        raise InputError(f"{path} has no {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        raise InputError(f"{path} has a setting of the wrong kind: {error}") from None


def read_json(path: Path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object")
    return found


def config_of(raw: dict[str, Any]) -> Config:
    family = raw["model_type"]
    if family not in FAMILIES:
        raise InputError(f"model_type {family!r}, expected one of {', '.join(FAMILIES)}")
    for name in REFUSED:
        if raw.get(name):
            raise InputError(f"{name} {raw[name]!r} is not supported")
    if "num_local_experts" in raw:
        raw = raw | {"num_experts": raw["num_local_experts"]}
    made = {"family": family, "HD": 0, "scale": 0, **FAMILIES[family], **numbers(raw)}
    if max(made["L"], made.get("E", 0)) > MOST:
        raise InputError(
            f"{made['L']} layers of {made.get('E', 0)} experts, expected at most {MOST}"
        )
    made["G"] = made.get("G", made["H"])
    made["HD"] = made["HD"] or made["D"] // made["H"]
    made["scale"] = made["scale"] or made.get("query_scalar", made["HD"]) ** -0.5
    gemma = family.startswith("gemma")
    if gemma:
        made["embed_scale"] = made["D"] ** 0.5
    if raw.get("attention_bias"):
        made["bias"] = "qkvo"
    name, usual = ("hidden_activation", "gelu_pytorch_tanh") if gemma else ("hidden_act", "silu")
    if raw.get(name, usual) not in ACTIVATIONS:
        raise InputError(f"activation {raw[name]!r} is not supported")
    layers, stops = layers_of(family, raw, made), raw.get("eos_token_id", [])
    return Config(
        **made, layers=layers, rope={kind: rope_of(raw, kind) for kind in {layer.kind for layer in layers}},
        activation=ACTIVATIONS[raw.get(name, usual)], tied=bool(raw.get("tie_word_embeddings", gemma)),
        stops=frozenset(stops if isinstance(stops, list) else [stops]), renormalize=bool(raw.get("norm_topk_prob")),
    )  # fmt: skip


def numbers(raw: dict[str, Any]) -> dict[str, Any]:
    """Those that Config has by name, each of the right kind."""
    found = {}
    for own in fields(Config):
        name = own.metadata.get("name")
        if name in raw:
            kind, words = (int, "whole number") if own.type == "int" else ((int, float), "number")
            if not (isinstance(raw[name], kind) and raw[name] > 0):
                raise InputError(f"{name} is {raw[name]!r}, expected a {words} above 0")
            found[own.name] = raw[name]
        elif name and own.default is MISSING:
            raise KeyError(name)
    return found


def layers_of(family: str, raw: dict, made: dict) -> tuple[Layer, ...]:
    """Which layers see a window only, as listed or by the rule of the family's older files; which have experts."""
    count, window, full = made["L"], made.get("window"), SEES_ALL.get(family)
    if not window or (family.startswith("qwen") and not raw.get("use_sliding_window")):
        kinds, window = ["full_attention"] * count, 0
    else:
        by_rule = [
            f"{'full' if full and full(i, raw) else 'sliding'}_attention" for i in range(count)
        ]
        kinds = raw.get("layer_types", by_rule)
    windows = {"full_attention": 0, "sliding_attention": window}
    if len(kinds) != count or {*kinds} - windows.keys():
        raise InputError(f"layer_types {kinds}, expected {count} of {', '.join(windows)}")
    experts = [0] * count
    if family == "qwen3_moe":
        every, plain = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers", [])
        E, _, _ = (raw[name] for name in MIXTURE)  # all are there
        experts = [E * (i not in plain and (i + 1) % every == 0) for i in range(count)]
    names = [kind.partition("_")[0] for kind in kinds]
    return tuple(map(Layer, names, [windows[kind] for kind in kinds], experts))


def rope_of(raw: dict, kind: str) -> dict:
    """Base, type and numbers of the positions of a kind of layer, from the new or the older settings."""
    made = raw.get("rope_parameters") or {}
    made = made.get(f"{kind}_attention", made)
    if not made:
        local = kind == "sliding" and "rope_local_base_freq" in raw
        base = raw["rope_local_base_freq"] if local else raw.get("rope_theta", 10000.0)
        made = {"rope_theta": base} | ((not local and raw.get("rope_scaling")) or {})
    made = {"rope_type": made.get("type", "default"), "partial_rotary_factor": 1.0} | made
    made["partial_rotary_factor"] = raw.get("partial_rotary_factor", made["partial_rotary_factor"])
    if made["rope_type"] not in ("default", "linear", "llama3"):
        raise InputError(f"positions of type {made['rope_type']!r} are not supported")
    if not 0 < made["partial_rotary_factor"] <= 1:
        raise InputError(
            f"partial_rotary_factor is {made['partial_rotary_factor']}, expected a share"
        )
    return made | {"trained": raw["max_position_embeddings"]}


def rope_table(config: Config, kind: str, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines (positions, R), in the float32 that models are trained with."""
    rope = config.rope[kind]
    R = int(config.HD * rope["partial_rotary_factor"])
    powers = np.arange(0, R, 2, dtype=np.float32) / np.float32(R)
    frequency = np.float32(1) / np.float32(rope["rope_theta"]) ** powers
    if rope["rope_type"] == "linear":
        frequency = frequency / np.float32(rope["factor"])
    elif rope["rope_type"] == "llama3":  # docs/rope.md
        trained = rope.get("original_max_position_embeddings", rope["trained"])
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share = np.clip((trained * frequency / (2 * np.pi) - low) / (high - low), 0, 1)
        frequency = (frequency * (share + (1 - share) / rope["factor"])).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequency
    both = np.concatenate([angles, angles], -1)
    return np.cos(both), np.sin(both)
