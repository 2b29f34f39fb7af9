# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call as text, as `index_select(f32(3, 4), 1, i64(5, below=4))`, and the values that it stands for."""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np

NAMES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "c64": "complex64",
    "c128": "complex128",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "u64": "uint64",
    "b1": "bool",
}
SHORT = {name: short for short, name in NAMES.items()}


class Spec(NamedTuple):
    """A tensor to be made: its values are drawn by a seed, unless they are given."""

    dtype: str
    shape: tuple[int, ...]
    kind: str = ""
    below: int = 0
    values: tuple | None = None

    def __repr__(self) -> str:
        words = [str(list(self.values))] if self.values is not None else [*map(str, self.shape)]
        if self.kind:
            words.append(f"kind={self.kind!r}")
        if self.below:
            words.append(f"below={self.below}")
        return f"{SHORT[self.dtype]}({', '.join(words)})"


def _maker(dtype: str):
    def make(*shape, kind: str = "", below: int = 0) -> Spec:
        if shape and isinstance(shape[0], list):
            return Spec(dtype, (len(shape[0]),), kind, below, tuple(shape[0]))
        return Spec(dtype, shape, kind, below)

    return make


_WORDS = {short: _maker(name) for short, name in NAMES.items()}
_WORDS |= {"inf": math.inf, "nan": math.nan, "__builtins__": {}, "dict": dict}


class Call(NamedTuple):
    """An overload and its arguments: tensors as Spec, all others as they are passed."""

    name: str
    args: tuple
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        words = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"{self.name}({', '.join(words)})"


def parse(line: str) -> Call:
    name, _, rest = line.partition("(")
    args, kwargs = eval(f"(lambda *a, **k: (a, k))({rest}", dict(_WORDS))
    return Call(name, args, kwargs)


def make(spec: Spec, seed: int) -> np.ndarray:
    """The array of a spec; bfloat16 as ml_dtypes'."""
    random = np.random.default_rng(seed)
    if spec.values is not None:
        return np.array(spec.values, _numpy_dtype(spec.dtype))
    drawn = _KINDS[spec.kind](random, spec)
    return np.ascontiguousarray(drawn).astype(_numpy_dtype(spec.dtype)).reshape(spec.shape)


def _numpy_dtype(name: str):
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)


def _plain(random, spec: Spec):
    if spec.dtype == "bool":
        return random.random(spec.shape) < 0.5
    if spec.dtype.startswith(("int", "uint")):
        return random.integers(*((0, spec.below) if spec.below else (1, 6)), spec.shape)
    if spec.dtype.startswith("complex"):
        return random.standard_normal(spec.shape) + 1j * random.standard_normal(spec.shape)
    return random.standard_normal(spec.shape)


def _positive_definite(random, spec: Spec):
    *batch, rows, columns = spec.shape
    half = _plain(random, spec._replace(shape=(*batch, rows, columns)))
    return half @ half.swapaxes(-1, -2).conj() + 2 * np.eye(rows, columns)


_KINDS = {
    "": _plain,
    "positive": lambda random, spec: random.uniform(0.5, 2, spec.shape),
    "unit": lambda random, spec: random.uniform(0.05, 0.95, spec.shape),
    "above one": lambda random, spec: random.uniform(1.1, 3, spec.shape),
    "zeros": lambda random, spec: np.zeros(spec.shape),
    "ones": lambda random, spec: np.ones(spec.shape),
    "sorted": lambda random, spec: np.sort(_plain(random, spec), -1),
    "permutation": lambda random, spec: random.permuted(
        np.broadcast_to(np.arange(spec.shape[-1]), spec.shape), axis=-1
    ),
    "definite": _positive_definite,
    "triangular": lambda random, spec: np.tril(_plain(random, spec)) + 2 * np.eye(spec.shape[-1]),
}


def arrays(call: Call, sample: int = 0) -> tuple[tuple, dict[str, Any]]:
    """Arguments of a call with NumPy arrays for its specs, the same ones at each time."""
    count = 0

    def fill(value):
        nonlocal count
        if isinstance(value, Spec):
            count += 1
            return make(value, zlib.crc32(f"{call.name} {sample} {count}".encode()))
        return [fill(item) for item in value] if isinstance(value, list) else value

    return tuple(map(fill, call.args)), {key: fill(value) for key, value in call.kwargs.items()}
