# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face folder, checked before any memory is taken; as they are, in fp8 or in 4 bits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import anyop
import ml_dtypes  # noqa: F401, bfloat16 for NumPy
import numpy as np
from safetensors import SafetensorError, safe_open

from . import InputError
from .config import Config, read_json
from .families import DENSE, EXPERTS

DTYPES = ("F32", "F16", "BF16")
IGNORED = (".inv_freq", ".attn.bias", ".attention.bias", ".masked_bias")  # tables, no weights
BITS = ("fp8", "w4")
MATRICES = ("qkv", "out", "gate_up", "up", "down", "w13", "w2")  # in fewer bits; all else stays
GROUP = 128  # columns of a 4-bit weight that share a scale
ROWS = 64  # of a matrix that a thread makes at once, so that they stay in its cache


class Tensor(NamedTuple):
    """What config.json asks for."""

    name: str
    shape: tuple[int, ...]
    order: str  # ' and % as families.py has them

    def in_order(self, array: np.ndarray, heads: int) -> np.ndarray:
        """A row for each result; where they go by heads, those of all queries first, then of keys and of values."""
        if self.order == "%":
            apart = array.reshape(heads, 3, -1, *array.shape[1:])
            return apart.swapaxes(0, 1).reshape(array.shape)
        return np.ascontiguousarray(array.T) if self.order == "'" else array


def layout(config: Config) -> list[dict[str, list[Tensor]]]:
    """The tensors of each weight: of the outer ones first, then of each layer."""
    inner = {own: text for own, text in config.weights.items() if text.startswith(".")}
    left = {"layers", "head"} if config.tied else {"layers"}
    outer = {own: config.weights[own] for own in config.weights if own not in inner.keys() | left}
    made = [tensors_of(config, outer, "")]
    for number, layer in enumerate(config.layers):
        others = DENSE if layer.experts else EXPERTS
        own = {name: text for name, text in inner.items() if name not in others}
        made.append(tensors_of(config, own, f"{config.weights['layers']}.{number}"))
    return made


def tensors_of(config: Config, weights: dict[str, str], before: str) -> dict[str, list[Tensor]]:
    Q, K = config.H * config.HD, config.G * config.HD
    sizes = {"V": config.V, "D": config.D, "F": config.F, "Y": 2 * config.F, "P": config.limit, "E": config.E,
             "M": config.FE, "A": config.HD, "Q": Q, "K": K, "X": Q + 2 * K}  # fmt: skip
    made = {}
    for own, text in weights.items():
        words = text.split()
        each = [
            (before + name.format(e=e), tuple(sizes[x] for x in how if x in sizes), how[-1])
            for e in range(config.E if "{e}" in text else 1)
            for name, how in zip(words[::2], words[1::2])
        ]
        made[own] = [
            Tensor(f"{name}.weight", shape[::-1] if order == "'" else shape, order)
            for name, shape, order in each
        ]
        if "+" in text or (config.bias and own in ("qkv", "out")):
            made[f"{own}_bias"] = [
                Tensor(f"{name}.bias", shape[:1], how) for name, shape, how in each
            ]
    return made


def read_weights(folder: Path, config: Config) -> dict[str, Any]:
    """All tensors by name, not read yet; they have the shapes that config asks for and finite numbers."""
    found, parts = stored_in(folder), chain(*(chain(*own.values()) for own in layout(config)))
    wanted = {part.name: part.shape for part in parts}
    for name in wanted:
        if name not in found:
            raise InputError(f"{folder}: no file has the tensor {name}")
    for usual, (path, name, tensor) in found.items():
        dtype, shape, asked = tensor.get_dtype(), tuple(tensor.get_shape()), wanted.get(usual)
        spare = usual.endswith(IGNORED) or (config.tied and usual == "lm_head.weight")
        if not asked and not spare:
            raise InputError(f"{path}: {name} has no place in a {config.family} model")
        if asked and dtype not in DTYPES:
            raise InputError(f"{path}: {name} is {dtype}, expected one of {', '.join(DTYPES)}")
        if asked and shape != asked:
            raise InputError(f"{path}: {name} has shape {shape}, config.json asks for {asked}")
    for path, name, tensor in map(found.get, wanted):
        broken = np.zeros(1, np.int32)
        anyop.multi_tensor_check_finite([tensor[:]], broken)
        if broken[0]:
            raise InputError(f"{path}: {name} holds a NaN or an infinite number")
    return {usual: found[usual][2] for usual in wanted}


def stored_in(folder: Path) -> dict[str, tuple[Path, str, Any]]:
    """File, name in it and tensor, by the names that families.py has."""
    found = {}
    for path in files_of(folder):
        try:
            file = safe_open(path, framework="numpy")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} is no whole safetensors file ({error})") from None
        for name in file.keys():  # noqa: SIM118
            usual = name.removeprefix("transformer.").replace("embed_out", "lm_head")
            found[usual] = path, name, file.get_slice(name)
    return found


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


def load(framework, config: Config, found: dict[str, Any]) -> dict[str, Any]:
    """The model's weights on the device; "layers" has those of each layer."""

    def loaded(own: str, parts: list[Tensor]) -> Any:
        """An array, None without tensors; in fewer bits values and scales."""
        arrays = [part.in_order(found[part.name][:], config.H) for part in parts]
        if own not in MATRICES or not config.bits:
            made = [framework.weight(arrays) if arrays else None]
        elif config.bits == "w4":
            made = w4(framework, arrays)
        else:
            values, scales = anyop.quant_fp8(framework.weight(arrays))  # a scale for each row
            made = [values, scales.reshape(-1)]
        if own in ("w13", "w2"):  # rows of all experts, one below the other
            made = [x.reshape(config.E, -1, *x.shape[1:]) for x in made]
        return made if len(made) == 2 else made[0]

    outer, *layers = (
        {own: loaded(own, parts) for own, parts in weights.items()} for weights in layout(config)
    )
    return {"head": outer["embed"], **outer, "layers": layers}


def w4(framework, arrays: list[np.ndarray]) -> list[Any]:
    rows = [a[n : n + ROWS].astype(np.float32) for a in arrays for n in range(0, len(a), ROWS)]
    with ThreadPoolExecutor() as pool:
        numbers, scales = zip(*pool.map(four_bits, rows))
    packed, _ = anyop.w4_pack(framework.array(np.concatenate(numbers)), None, "plain")
    return [packed, framework.array(np.concatenate(scales, 1))]


def four_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0 to 15 for -8 to 7 times a scale, two in a byte, low bits first; scales (groups of columns, N)."""
    N, K = matrix.shape
    wide = np.pad(matrix, ((0, 0), (0, -K % GROUP))).reshape(N, -1, GROUP)
    scale = np.maximum(np.abs(wide).max(-1), 1e-10) / 7
    numbers = np.clip(np.rint(wide / scale[..., None]) + 8, 0, 15).astype(np.uint8)
    numbers = numbers.reshape(N, -1)[:, :K]
    return numbers[:, ::2] | numbers[:, 1::2] << 4, np.ascontiguousarray(scale.T)
