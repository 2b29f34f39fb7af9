# SPDX-License-Identifier: Apache-2.0
"""config.json as one description of a decoder: sizes, tensors, positions, and what each layer has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import InputError
from .families import DENSE, EXPERTS, FAMILIES, HEADS, LLAMA, PLAIN, REFUSED, SAME, SEES_ALL

ACTIVATIONS = {"silu": "silu", "gelu": "gelu"} | dict.fromkeys(
    ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"
)
MOST = 4096  # layers, or experts of one


class Layer(NamedTuple):
    kind: str  # of its positions: "full" or "sliding"
    window: int  # keys that a query sees, its own included; 0: all
    experts: int = 0  # of a mixture, in place of the feed-forward part


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    order: str  # ' and % as families.py has them

    def in_order(self, array: np.ndarray, heads: int) -> np.ndarray:
        """A row for each result; where they go by heads, those of all queries first, then of keys and of values."""
        if self.order == "%":
            apart = array.reshape(heads, 3, -1, *array.shape[1:])
            return apart.swapaxes(0, 1).reshape(array.shape)
        return np.ascontiguousarray(array.T) if self.order == "'" else array


def setting(name: str, default: Any = MISSING) -> Any:
    """A number above 0 that config.json calls so."""
    return field(metadata={"name": name}, default=default)


@dataclass(frozen=True, kw_only=True)
class Config:
    family: str
    V: int = setting("vocab_size")  # words
    D: int = setting("hidden_size")  # features
    F: int = setting("intermediate_size")  # features inside the feed-forward part; 0: 4 D
    H: int = setting("num_attention_heads")  # heads of queries
    G: int = setting("num_key_value_heads", 0)  # heads of keys; 0: H
    HD: int = setting("head_dim", 0)  # features of a head; 0: D / H
    L: int = setting("num_hidden_layers")
    window: int = setting("sliding_window", 0)
    limit: int = setting("max_position_embeddings")  # tokens that the model was made for
    E: int = setting("num_experts", 0)
    FE: int = setting("moe_intermediate_size", 0)  # features inside an expert
    chosen: int = setting("num_experts_per_tok", 0)  # experts of a token
    eps: float = setting("rms_norm_eps")
    query_scalar: float = setting("query_pre_attn_scalar", 0)  # 0: HD
    scale: float = setting("attention_multiplier", 0)  # of scores; 0: that to the power of -1/2
    softcap: float = setting("attn_logit_softcapping", 0.0)  # of scores
    logit_cap: float = setting("final_logit_softcapping", 0.0)
    embed_scale: float = setting("embedding_multiplier", 1.0)  # 0: D to the power of 1/2
    residual_scale: float = setting("residual_multiplier", 1.0)
    logit_divisor: float = setting("logits_scaling", 1.0)
    weights: dict[str, str]  # as families.py has them
    layers: tuple[Layer, ...]
    rope: dict[str, dict]  # by kind of layer; none where places are learned
    activation: str = "silu"
    norm: str = "rms_norm"
    norm_offset: float = 0.0
    bias: bool = False  # of the products of attention
    parallel: bool = False  # both blocks of a layer read the same sum
    tied: bool = False  # the head is the embedding
    stops: frozenset[int] = frozenset()
    renormalize: bool = False  # weights of a token's experts sum to 1
    split_size: int = 0  # keys of a part of a long sequence on CUDA; 0: what the batch suggests
    whole_layers: bool = False  # a layer of a decoding step is one operator

    @property
    def has_plain_layers(self) -> bool:
        """Whether that operator computes what the layers do."""
        own = {name for name, text in self.weights.items() if text.startswith(".")}
        return (
            PLAIN <= own <= PLAIN | HEADS.keys()
            and (self.norm, self.activation, self.norm_offset) == ("rms_norm", "silu", 0)
            and (self.softcap, self.residual_scale, self.bias) == (0, 1, False)
            and {rope["partial_rotary_factor"] for rope in self.rope.values()} == {1.0}
            and not any(layer.window for layer in self.layers)
        )  # fmt: skip

    def layout(self) -> list[dict[str, list[Tensor]]]:
        """The tensors of each weight: of the outer ones first, then of each layer."""
        inner = {own: text for own, text in self.weights.items() if text.startswith(".")}
        left = {"layers", "head"} if self.tied else {"layers"}
        outer = {own: self.weights[own] for own in self.weights if own not in inner.keys() | left}
        made = [self.parts(outer, "")]
        for number, layer in enumerate(self.layers):
            others = DENSE if layer.experts else EXPERTS
            own = {name: text for name, text in inner.items() if name not in others}
            made.append(self.parts(own, f"{self.weights['layers']}.{number}"))
        return made

    def parts(self, weights: dict[str, str], before: str) -> dict[str, list[Tensor]]:
        Q, K = self.H * self.HD, self.G * self.HD
        sizes = {"V": self.V, "D": self.D, "F": self.F, "Y": 2 * self.F, "P": self.limit, "E": self.E,
                 "M": self.FE, "A": self.HD, "Q": Q, "K": K, "X": Q + 2 * K}  # fmt: skip
        made = {}
        for own, text in weights.items():
            words = text.split()
            each = [
                (before + name, tuple(sizes[x] for x in how if x in sizes), how[-1])
                for name, how in zip(words[::2], words[1::2])
            ]
            if "{e}" in text:
                each = [(name.format(e=e), *how) for e in range(self.E) for name, *how in each]
            made[own] = [
                Tensor(f"{name}.weight", shape[::-1] if order == "'" else shape, order)
                for name, shape, order in each
            ]
            if "+" in text or (self.bias and own in ("qkv", "out")):
                biases = [Tensor(f"{name}.bias", shape[:1], order) for name, shape, order in each]
                made[f"{own}_bias"] = biases
        return made

    def tensors(self) -> Iterator[Tensor]:
        return (part for own in self.layout() for parts in own.values() for part in parts)


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
    made = {"family": family, "weights": LLAMA, **FAMILIES[family]}
    raw |= {name: raw[other] for other, name in SAME.items() if other in raw}
    raw = made.pop("usual", {}) | raw
    for name, usual in REFUSED.items():
        if raw.get(name, usual) != usual:
            raise InputError(f"{name} {raw[name]!r} is not supported")
    for own in fields(Config):
        name = own.metadata.get("name")
        if name in raw:
            kind, words = (int, "whole number") if own.type == "int" else ((int, float), "number")
            if not (isinstance(raw[name], kind) and raw[name] > 0):
                raise InputError(f"{name} is {raw[name]!r}, expected a {words} above 0")
            made[own.name] = raw[name]
        elif name and made.setdefault(own.name, own.default) is MISSING:
            raise KeyError(name)
    if max(made["L"], made["E"]) > MOST:
        raise InputError(f"{made['L']} layers of {made['E']} experts, expected at most {MOST}")
    D, H = made["D"], made["H"]
    for name, usual in {"F": 4 * D, "G": H, "HD": D // H, "embed_scale": D**0.5}.items():
        made[name] = made[name] or usual
    made["scale"] = made["scale"] or (made["query_scalar"] or made["HD"]) ** -0.5
    activation = raw.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise InputError(f"activation {activation!r} is not supported")
    layers, stops = layers_of(raw, made), raw.get("eos_token_id", [])
    kinds = {layer.kind for layer in layers} if "places" not in made["weights"] else ()
    return Config(
        **made, layers=layers, rope={kind: rope_of(raw, kind) for kind in kinds}, activation=ACTIVATIONS[activation],
        bias=bool(raw.get("attention_bias")), parallel=bool(raw.get("use_parallel_residual")),
        tied=bool(raw.get("tie_word_embeddings")), renormalize=bool(raw.get("norm_topk_prob")),
        stops=frozenset(stops if isinstance(stops, list) else [stops]),
    )  # fmt: skip


def layers_of(raw: dict, made: dict) -> tuple[Layer, ...]:
    """Which layers see a window only, as listed or by the rule of the family's older files; which have experts."""
    count, windows = made["L"], {"full": 0, "sliding": made["window"]}
    full = SEES_ALL.get(made["family"], lambda i, raw: False)
    if not (made["window"] and raw.get("use_sliding_window", True)):
        kinds = ["full"] * count
    elif "layer_types" in raw:
        kinds = [kind.removesuffix("_attention") for kind in raw["layer_types"]]
    else:
        kinds = ["full" if full(i, raw) else "sliding" for i in range(count)]
    if len(kinds) != count or {*kinds} - windows.keys():
        expected = "full_attention, sliding_attention"
        raise InputError(f"layer_types {raw['layer_types']}, expected {count} of {expected}")
    every, plain = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers", [])
    has = [i not in plain and (i + 1) % every == 0 for i in range(count)]
    experts = [made["E"] * one if "router" in made["weights"] else 0 for one in has]
    return tuple(map(Layer, kinds, [windows[kind] for kind in kinds], experts))


def rope_of(raw: dict, kind: str) -> dict:
    """Base, type and numbers of the positions of a kind of layer, from the new or the older settings."""
    made = raw.get("rope_parameters") or {}
    made = made.get(f"{kind}_attention", made)
    if not made:
        local = kind == "sliding" and "rope_local_base_freq" in raw
        base = raw["rope_local_base_freq"] if local else raw.get("rope_theta", 10000.0)
        made = {"rope_theta": base} | ((not local and raw.get("rope_scaling")) or {})
    name = "partial_rotary_factor"
    share = raw.get(name, made.get(name, raw.get("rotary_pct", 1.0)))
    made = {"rope_type": made.get("type", "default")} | made | {name: share}
    if made["rope_type"] not in ("default", "linear", "llama3"):
        raise InputError(f"positions of type {made['rope_type']!r} are not supported")
    if not 0 < share <= 1:
        raise InputError(f"{name} is {share}, expected a share")
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
