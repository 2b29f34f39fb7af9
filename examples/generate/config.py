# SPDX-License-Identifier: Apache-2.0
"""config.json, of today or of older files, as one description of a decoder."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from . import InputError
from .families import FAMILIES, LLAMA, REFUSED, SAME, SEES_ALL, SETTINGS

ACTIVATIONS = {"silu": "silu", "gelu": "gelu"} | dict.fromkeys(
    ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"
)
MOST = 4096  # layers, or experts of one


class Layer(NamedTuple):
    kind: str  # of its positions: "full" or "sliding"
    window: int  # keys that a query sees, its own included; 0: all
    experts: int = 0  # of a mixture, in place of the feed-forward part


class Config(SimpleNamespace):
    """A decoder: settings by their short names in families.SETTINGS, and

    family, weights, norm, norm_offset: as families.py has them
    layers: a Layer for each
    rope:   frequencies of positions by kind of layer; none where places are learned
    stops:  tokens
    and what the program is asked for: dtype, and
    bits:         of matrices of layers, one of checkpoint.BITS or None
    split_size:   keys of a part of a long sequence on CUDA; 0: what the batch suggests
    whole_layers: a layer of a decoding step is one operator
    """


def read_config(folder: Path) -> Config:
    path, chat = folder / "config.json", folder / "generation_config.json"
    raw = {name: value for name, value in read_json(path).items() if value is not None}
    if chat.exists():  # it may have more tokens that stop
        raw |= {k: v for k, v in read_json(chat).items() if k == "eos_token_id"}
    try:
        with np.errstate(all="raise", under="ignore"):
            return config_of(raw)
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
    raw |= {name: raw[other] for other, name in SAME.items() if other in raw}
    for name, usual in REFUSED.items():
        if raw.get(name, usual) != usual:
            raise InputError(f"{name} {raw[name]!r} is not supported")
    row = {"weights": LLAMA, "norm": "rms_norm", "norm_offset": 0.0, **FAMILIES[family]}
    made = {"family": family, **{own: row[own] for own in ("weights", "norm", "norm_offset")}}
    said = row | raw
    for name, (own, usual) in SETTINGS.items():
        made[own] = said.get(name, usual)
        if isinstance(made[own], type):
            raise KeyError(name)
        kind = usual if isinstance(usual, type) else type(usual)
        if name in raw and kind in (int, float):
            check_number(name, raw[name], kind)
    if max(made["L"], made["E"]) > MOST:
        raise InputError(f"{made['L']} layers of {made['E']} experts, expected at most {MOST}")
    D, H = made["D"], made["H"]
    for name, size in {"F": 4 * D, "G": H, "HD": D // H, "embed_scale": D**0.5}.items():
        made[name] = made[name] or size
    made["scale"] = made["scale"] or (made["query_scalar"] or made["HD"]) ** -0.5
    if made["activation"] not in ACTIVATIONS:
        raise InputError(f"activation {made['activation']!r} is not supported")
    made["activation"] = ACTIVATIONS[made["activation"]]
    layers, stops = layers_of(said, made), raw.get("eos_token_id", [])
    kinds = {layer.kind for layer in layers} if "places" not in made["weights"] else ()
    rope = {kind: frequencies(said, made, kind) for kind in kinds}
    stops = frozenset(stops if isinstance(stops, list) else [stops])
    return Config(**made, layers=layers, rope=rope, stops=stops)


def check_number(name: str, value: Any, kind: type) -> None:
    kinds, words = ((int, float), "number") if kind is float else (int, "whole number")
    if not (isinstance(value, kinds) and value > 0):
        raise InputError(f"{name} is {value!r}, expected a {words} above 0")


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


def frequencies(raw: dict, made: dict, kind: str) -> np.ndarray:
    """Of positions in a kind of layer, from the new or the older settings, in the float32 of training."""
    rope = raw.get("rope_parameters") or {}
    rope = rope.get(f"{kind}_attention", rope)
    if not rope:
        local = kind == "sliding" and "rope_local_base_freq" in raw
        base = raw["rope_local_base_freq"] if local else raw.get("rope_theta", 10000.0)
        rope = {"rope_theta": base} | ((not local and raw.get("rope_scaling")) or {})
    name = "partial_rotary_factor"
    share = raw.get(name, rope.get(name, raw.get("rotary_pct", 1.0)))
    if not 0 < share <= 1:
        raise InputError(f"{name} is {share}, expected a share")
    R = int(made["HD"] * share)
    powers = np.arange(0, R, 2, dtype=np.float32) / np.float32(R)
    frequency = np.float32(1) / np.float32(rope["rope_theta"]) ** powers
    way = rope.get("rope_type", rope.get("type", "default"))
    if way == "linear":
        frequency = frequency / np.float32(rope["factor"])
    elif way == "llama3":  # docs/rope.md
        trained = rope.get("original_max_position_embeddings", made["limit"])
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share = np.clip((trained * frequency / (2 * np.pi) - low) / (high - low), 0, 1)
        frequency = (frequency * (share + (1 - share) / rope["factor"])).astype(np.float32)
    elif way != "default":
        raise InputError(f"positions of type {way!r} are not supported")
    return frequency


def rope_table(frequencies: np.ndarray, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines (positions, R)."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    both = np.concatenate([angles, angles], -1)
    return np.cos(both), np.sin(both)
