# SPDX-License-Identifier: Apache-2.0
"""config.json of ten families as the sizes and the few differences that the model knows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import InputError

FAMILIES = (
    "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
REFUSED = ("mlp_bias", "use_bidirectional_attention", "quantization_config")
WHOLE = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "max_position_embeddings", "sliding_window", "sliding_window_pattern",
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step",
)  # fmt: skip
POSITIVE = (
    "rms_norm_eps", "query_pre_attn_scalar", "attention_multiplier", "embedding_multiplier",
    "residual_multiplier", "logits_scaling", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip


@dataclass(frozen=True)
class Layer:
    kind: str  # of its positions: "full" or "sliding"
    window: int  # keys that a query sees, its own included; 0: all
    experts: int = 0  # of a mixture, in place of the feed-forward part


@dataclass(frozen=True)
class Config:
    family: str
    V: int  # words
    D: int  # features
    F: int  # features inside the feed-forward part
    H: int  # heads of queries
    G: int  # heads of keys
    HD: int  # features of a head
    eps: float
    limit: int  # tokens that the model was made for
    activation: str
    layers: tuple[Layer, ...]
    rope: dict[str, dict]  # by kind of layer
    scale: float  # of scores
    bias: str  # of products: "", "qkv" or "qkvo"
    tied: bool  # the head is the embedding
    stops: frozenset[int]
    norms: str = "before"  # blocks; "after" them; "both"
    qk_norm: str = ""  # of queries and keys: each "head", or a token's whole "row"
    norm_offset: float = 0.0
    softcap: float = 0.0  # of scores
    logit_cap: float = 0.0
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    FE: int = 0  # features inside an expert
    chosen: int = 0  # experts of a token
    renormalize: bool = False  # their weights sum to 1
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
        refuse(raw)
        with np.errstate(all="raise", under="ignore"):
            config = config_of(raw["model_type"], raw)
            for kind in config.rope:
                rope_table(config, kind, 2)
        return config
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except KeyError as error:
        raise InputError(f"{path} has no {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
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


def refuse(raw: dict[str, Any]) -> None:
    """What this program does not have, and numbers that are none."""
    if raw["model_type"] not in FAMILIES:
        raise InputError(f"model_type {raw['model_type']!r}, expected one of {', '.join(FAMILIES)}")
    for name in REFUSED:
        if raw.get(name):
            raise InputError(f"{name} {raw[name]!r} is not supported")
    for name in (*WHOLE, *POSITIVE):
        kind, words = (int, "whole number") if name in WHOLE else ((int, float), "number")
        if name in raw and not (isinstance(raw[name], kind) and raw[name] > 0):
            raise InputError(f"{name} is {raw[name]!r}, expected a {words} above 0")


def config_of(family: str, raw: dict[str, Any]) -> Config:
    gemma, D, H = family.startswith("gemma"), raw["hidden_size"], raw["num_attention_heads"]
    HD = raw.get("head_dim") or D // H
    activation = raw.get("hidden_activation" if gemma else "hidden_act") or "gelu_pytorch_tanh"
    if activation not in ACTIVATIONS:
        raise InputError(f"activation {activation!r} is not supported")
    stops, scale = raw.get("eos_token_id"), raw.get("query_pre_attn_scalar", HD) ** -0.5
    layers = layers_of(family, raw)
    mixed = any(layer.experts for layer in layers)
    return Config(
        family, V=raw["vocab_size"], D=D, F=raw["intermediate_size"], H=H, HD=HD,
        G=raw.get("num_key_value_heads") or H, eps=raw["rms_norm_eps"],
        limit=raw["max_position_embeddings"], activation=ACTIVATIONS[activation], layers=layers,
        rope={kind: rope_of(raw, kind) for kind in {layer.kind for layer in layers}},
        scale=raw["attention_multiplier"] if family == "granite" else scale,
        bias="qkv" if family == "qwen2" else "qkvo" * bool(raw.get("attention_bias")),
        tied=bool(raw.get("tie_word_embeddings", gemma)),
        stops=frozenset(stops if isinstance(stops, list) else [] if stops is None else [stops]),
        norms="both" if gemma else "after" if family == "olmo2" else "before",
        qk_norm={"olmo2": "row"}.get(family, "head" * family.startswith(("qwen3", "gemma3"))),
        norm_offset=float(gemma),
        softcap=raw.get("attn_logit_softcapping") or 0.0,
        logit_cap=raw.get("final_logit_softcapping") or 0.0,
        embed_scale=D**0.5 if gemma else raw.get("embedding_multiplier", 1.0),
        residual_scale=raw.get("residual_multiplier", 1.0),
        logit_divisor=raw.get("logits_scaling", 1.0),
        FE=raw["moe_intermediate_size"] if mixed else 0,
        chosen=raw["num_experts_per_tok"] if mixed else 0,
        renormalize=bool(raw.get("norm_topk_prob")),
    )  # fmt: skip


def layers_of(family: str, raw: dict) -> tuple[Layer, ...]:
    """Which layers see a window only, as listed or by the rule of the family's older files; which have experts."""
    count, window = raw["num_hidden_layers"], raw.get("sliding_window")
    if not window or (family.startswith("qwen") and not raw.get("use_sliding_window")):
        kinds, window = ["full_attention"] * count, 0
    else:
        full = {
            "gemma2": lambda i: i % 2 == 1,
            "gemma3_text": lambda i: (i + 1) % raw.get("sliding_window_pattern", 6) == 0,
            "qwen2": lambda i: i < raw["max_window_layers"],
            "qwen3": lambda i: i < raw["max_window_layers"],
        }.get(family, lambda i: False)
        by_rule = ["full_attention" if full(i) else "sliding_attention" for i in range(count)]
        kinds = raw.get("layer_types", by_rule)
    windows = {"full_attention": 0, "sliding_attention": window}
    if len(kinds) != count or {*kinds} - windows.keys():
        raise InputError(f"layer_types {kinds}, expected {count} of {', '.join(windows)}")
    experts = [0] * count
    if family == "qwen3_moe":
        every, plain = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers", [])
        E = raw["num_local_experts"] if "num_local_experts" in raw else raw["num_experts"]
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
