# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face folder, checked before any memory is taken; as they are, in fp8 or in 4 bits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import anyop
import ml_dtypes  # noqa: F401, bfloat16 for NumPy
import numpy as np
from safetensors import SafetensorError, safe_open

from . import InputError
from .config import Config, read_json

DTYPES = ("F32", "F16", "BF16")
PIECE = 1 << 16  # elements that are looked at at once, so that all of it happens in the cache
IGNORED = (".inv_freq", ".attn.bias", ".attention.bias", ".masked_bias")  # tables, no weights
BITS = ("fp8", "w4")
MATRICES = ("qkv", "out", "gate_up", "up", "down", "w13", "w2")  # in fewer bits; all else stays
GROUP = 128  # columns of a 4-bit weight that share a scale
ROWS = 64  # of a matrix that a thread makes at once, so that they stay in its cache


class Stored(NamedTuple):
    path: Path
    file: Any  # open, its tensors are read when they are used
    name: str  # in the file

    def read(self) -> np.ndarray:
        return self.file.get_tensor(self.name)


def read_weights(folder: Path, config: Config) -> dict[str, Stored]:
    """All tensors by name, with the shapes that config asks for and finite numbers."""
    found: dict[str, Stored] = {}
    for path in files_of(folder):
        try:
            file = safe_open(path, framework="numpy")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} is no whole safetensors file ({error})") from None
        for name in file.keys():  # noqa: SIM118
            usual = name.removeprefix("transformer.").replace("embed_out", "lm_head")
            found[usual] = Stored(path, file, name)
    wanted = {part.name: part.shape for part in config.tensors()}
    for name in wanted:
        if name not in found:
            raise InputError(f"{folder}: no file has the tensor {name}")
    for usual, (path, file, name) in found.items():
        if usual in wanted:
            entry, asked = file.get_slice(name), wanted[usual]
            dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
            if dtype not in DTYPES:
                raise InputError(f"{path}: {name} is {dtype}, expected one of {', '.join(DTYPES)}")
            if shape != asked:
                raise InputError(f"{path}: {name} has shape {shape}, config.json asks for {asked}")
        elif not usual.endswith(IGNORED) and not (config.tied and usual == "lm_head.weight"):
            raise InputError(f"{path}: {name} has no place in a {config.family} model")
    found = {name: found[name] for name in wanted}
    for stored in found.values():
        array = stored.read().reshape(-1)
        bits, infinite = (x.view(f"u{x.itemsize}") for x in (array, np.array(np.inf, array.dtype)))
        for begin in range(0, len(bits), PIECE):
            if (bits[begin : begin + PIECE] & infinite == infinite).any():
                raise InputError(f"{stored.path}: {stored.name} holds a NaN or an infinite number")
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


def weight(framework, config: Config, own: str, arrays: list[np.ndarray], bits: str | None) -> Any:
    """What the model calls own, on the device: an array (None without parts), or a dict of those in fewer bits."""
    if not arrays:
        return None
    if own not in MATRICES or not bits:
        made = {"": framework.weight(arrays)}
    elif bits == "fp8":
        values, scale = anyop.quant_fp8(framework.weight(arrays))  # a scale for each row
        made = {"fp8": values, "scale": scale.reshape(-1)}
    else:
        rows = [a[n : n + ROWS].astype(np.float32) for a in arrays for n in range(0, len(a), ROWS)]
        with ThreadPoolExecutor() as pool:
            numbers, scales = zip(*pool.map(four_bits, rows))
        packed, _ = anyop.w4_pack(framework.array(np.concatenate(numbers)), None, "plain")
        made = {"w4": packed, "scale": framework.array(np.concatenate(scales, 1))}
    if own in ("w13", "w2"):  # rows of all experts, one below the other, as one matrix of each
        E = config.E
        made = {name: x.reshape(E, x.shape[0] // E, *x.shape[1:]) for name, x in made.items()}
    return made.get("", made)


def four_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0 to 15 for -8 to 7 times a scale, two in a byte, low bits first; scales (groups of columns, N)."""
    N, K = matrix.shape
    wide = np.pad(matrix, ((0, 0), (0, -K % GROUP))).reshape(N, -1, GROUP)
    scale = np.maximum(np.abs(wide).max(-1), 1e-10) / 7
    numbers = np.clip(np.rint(wide / scale[..., None]) + 8, 0, 15).astype(np.uint8)
    numbers = numbers.reshape(N, -1)[:, :K]
    return numbers[:, ::2] | numbers[:, 1::2] << 4, np.ascontiguousarray(scale.T)
