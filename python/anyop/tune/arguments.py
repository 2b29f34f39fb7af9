# SPDX-License-Identifier: Apache-2.0
"""Arguments of a kind of call: drawn as the standard tests draw them, laid out as the record says."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

import anyop
from anyop.cases.callers import TorchCudaCaller
from anyop.cases.draw import Point
from anyop.cases.dtype_choices import DtypeChoice, is_floating, made_here, numpy_dtype
from anyop.cases.good_cases import Case
from anyop.cases.subject import Subject
from anyop.cases.values import draw, in_float64
from anyop.tune.workload import Kind, Spec

_ALIGNED = 64  # bytes, as allocators of frameworks do


class CannotDraw(Exception):
    """Why no such call can be made here."""


def function_of(operator: str) -> Any:
    """The function that anyop.ops has for it."""
    namespace, _, name = operator.rpartition(".")
    return getattr(getattr(anyop.ops, namespace or "anyop"), name)


class Memory:
    """Where a call's tensors lie: NumPy's memory, or torch's on a device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.caller: TorchCudaCaller | None = None
        if device == "cuda":
            self.caller = _torch_on_cuda()
        elif device != "cpu":
            raise CannotDraw(f"there is no way to make tensors on {device} here")

    def tensor(self, spec: Spec, values: np.ndarray | None) -> Any:
        """A tensor of that layout; without values of zeros."""
        memory, first = _span(spec)
        if values is not None:
            _view(memory, first, spec)[...] = values
        if self.caller is None:
            return _view(memory, first, spec)
        if min(spec.strides, default=0) < 0:
            raise CannotDraw("torch has no negative strides")
        torch = self.caller.framework
        there = torch.from_numpy(memory).to(self.device)
        dtype = getattr(torch, spec.dtype)
        return there.view(dtype).as_strided(spec.shape, spec.strides, first)

    def array(self, tensor: Any) -> np.ndarray:
        """The values in an array."""
        return tensor if self.caller is None else self.caller.array(tensor)


def _torch_on_cuda() -> TorchCudaCaller:
    try:
        caller = TorchCudaCaller()
    except ImportError:
        raise CannotDraw("tensors on cuda need torch, which is not installed") from None
    if not caller.framework.cuda.is_available():
        raise CannotDraw("torch finds no CUDA device")
    return caller


def _span(spec: Spec) -> tuple[np.ndarray, int]:
    """Aligned bytes for all elements, and which of them element (0, ..., 0) is."""
    item = numpy_dtype(spec.dtype).itemsize
    steps = zip(spec.shape, spec.strides)
    reach = [0] if 0 in spec.shape else [(size - 1) * step for size, step in steps]
    first = -sum(step for step in reach if step < 0)
    count = first + sum(step for step in reach if step > 0) + 1
    memory = np.zeros(count * item + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    return memory[begin : begin + count * item], first


def _view(memory: np.ndarray, first: int, spec: Spec) -> np.ndarray:
    dtype = numpy_dtype(spec.dtype)
    steps = [step * dtype.itemsize for step in spec.strides]
    return np.ndarray(spec.shape, dtype, memory.data, first * dtype.itemsize, steps)


class Draw:
    """Draws the arguments of one kind, the same values every time."""

    def __init__(self, kind: Kind) -> None:
        specs = [v for value in kind.inputs.values() for v in _listed(value) if isinstance(v, Spec)]
        dtypes = {spec.dtype for spec in specs}
        if missing := dtypes - set(made_here(dtypes)):
            raise CannotDraw(f"arrays of {', '.join(sorted(missing))} need ml_dtypes")
        self.kind = kind
        self.memory = Memory(kind.device)
        metadata = anyop.metadata(kind.operator)
        self.subject = Subject(kind.operator, Path(), function_of(kind.operator), metadata)

    def inputs(self) -> dict[str, Any]:
        """All arguments but the results; those that are absent are left out."""
        generator = np.random.default_rng(zlib.crc32(self.kind.key.encode()))
        sizes = self.kind.sizes()
        found = {}
        for param in self.subject.inputs:
            value = self.kind.inputs[param["name"]]
            if param["kind"] == "Tensor" and value is not None:
                made = [self._one(param, spec, sizes, generator) for spec in _listed(value)]
                found[param["name"]] = made if param["list"] else made[0]
            elif value is not None or param["optional"]:
                found[param["name"]] = value
        return found

    def _one(self, param: dict[str, Any], spec: Spec | None, sizes: Any, generator: Any) -> Any:
        if spec is None:
            return None
        choice = DtypeChoice({param["name"]: spec.dtype})
        case = Case(str(self.kind), "tune", choice, Point(sizes))
        return self.memory.tensor(spec, draw(self.subject, param, case, spec.shape, generator))

    def places(self, inputs: dict[str, Any], inplace: bool = True) -> dict[str, Any]:
        """Where results are to be written, False for those that are not wanted."""
        found = {}
        for name, spec in self.kind.results.items():
            if spec is None:
                found[name] = False
            elif inplace and spec.inplace:
                found[name] = inputs[spec.inplace]
            else:
                found[name] = self.memory.tensor(spec, None)
        return found

    def widened(self, inputs: dict[str, Any], wide: dict[str, str]) -> dict[str, Any]:
        """The inputs as arrays in CPU memory, dtypes replaced as `wide` says."""
        return {name: self._widen(value, wide) for name, value in inputs.items()}

    def _widen(self, value: Any, wide: dict[str, str]) -> Any:
        if isinstance(value, list):
            return [self._widen(item, wide) for item in value]
        if isinstance(value, str):
            return wide.get(value, value)  # of a ScalarType; no text is a name of a dtype
        if value is None or isinstance(value, (bool, int, float)):
            return value
        array = self.memory.array(value)
        return np.array(array, dtype=numpy_dtype(wide.get(array.dtype.name, array.dtype.name)))

    def values(self, inputs: dict[str, Any], results: Any) -> dict[str, np.ndarray]:
        """What a call gave: wanted results and changed arguments, by name."""
        found = {}
        listed = results if isinstance(results, (tuple, list)) else (results,)
        for name, result in zip(self.kind.results, listed):
            if self.kind.results[name] is not None:
                found[name] = self.memory.array(result)
        for name in self.subject.metadata["mutated"]:
            for at, tensor in enumerate(_listed(inputs.get(name))):
                if tensor is not None:
                    found[f"{name}[{at}]"] = np.array(self.memory.array(tensor))
        return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest |found - expected| / (1 + |expected|); infinite where one is finite and the other not.

    Of integers and bools 0 where all are equal, else infinite.
    """
    if found.shape != expected.shape:
        return float("inf")
    if not is_floating(found.dtype.name):
        return 0.0 if (found == expected.astype(found.dtype)).all() else float("inf")
    got, wanted = in_float64(found), in_float64(expected)
    with np.errstate(all="ignore"):
        rounded = in_float64(expected.astype(found.dtype))
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        off = np.where(same, 0.0, np.abs(got - wanted) / (1 + np.abs(wanted)))
    off = np.where(np.isfinite(rounded) | same, off, np.inf)
    off = np.where(np.isnan(off), np.inf, off)
    return float(off.max(initial=0.0))
