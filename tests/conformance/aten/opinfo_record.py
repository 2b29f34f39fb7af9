# SPDX-License-Identifier: Apache-2.0
"""Records the ATen calls that a torch program ends in, with all they read and wrote, as NumPy can hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

PLAIN = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
PLAIN += ("float16", "float32", "float64", "complex64", "complex128")
DTYPES = {getattr(torch, name): np.dtype(name) for name in PLAIN}
SMALL = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
DTYPES |= {getattr(torch, name): np.dtype(getattr(ml_dtypes, name)) for name in SMALL}


class NotForNumpy(Exception):
    """A tensor that no NumPy array can be; says why."""


@dataclass(frozen=True)
class Frozen:
    """A tensor as it was: bytes that it may share with others of the call, and its place in them."""

    data: np.ndarray
    dtype: torch.dtype
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, copies: dict[int, np.ndarray]) -> np.ndarray:
        """A new array; arrays of one call share memory where the tensors did."""
        data = copies.setdefault(id(self.data), self.data.copy())
        dtype = DTYPES[self.dtype]
        if 0 in self.sizes:
            return np.empty(self.sizes, dtype)
        steps = [stride * dtype.itemsize for stride in self.strides]
        return np.ndarray(self.sizes, dtype, data, self.offset * dtype.itemsize, steps)

    def tensor(self, copies: dict[int, np.ndarray]) -> torch.Tensor:
        data = torch.from_numpy(copies.setdefault(id(self.data), self.data.copy()))
        there = torch.empty(0, dtype=self.dtype)
        return there.set_(data.untyped_storage(), self.offset, self.sizes, self.strides)


def why_not(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no form in NumPy; None: it has one."""
    if tensor.is_nested:
        return "nested tensor"
    if tensor.is_quantized:
        return "quantized tensor"
    if tensor.layout != torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} tensor"
    if tensor.device.type != "cpu":
        return f"tensor on {tensor.device.type}"
    return None if tensor.dtype in DTYPES else f"{str(tensor.dtype).removeprefix('torch.')} tensor"


class Freezer:
    """Copies tensors of one call; storages that they share are copied once."""

    def __init__(self):
        self._data: dict[int, tuple] = {}

    def __call__(self, value: Any) -> Any:
        return tree_map_only(torch.Tensor, self.freeze, value)

    def freeze(self, tensor: torch.Tensor) -> Frozen:
        if reason := why_not(tensor):
            raise NotForNumpy(reason)
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if tensor._is_zerotensor():
            tensor = tensor.clone()
        storage = tensor.untyped_storage()
        held = self._data.get(storage._cdata)
        if held is None:
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().copy()
            held = self._data[storage._cdata] = (data, tensor)  # the tensor keeps the key its own
        place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return Frozen(held[0], tensor.dtype, *place)


@dataclass
class Leaf:
    """One call of an overload: what went in, what came out, what its written arguments were then."""

    function: Any
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    results: Any = None
    written: dict[str, Any] = field(default_factory=dict)
    rng: torch.Tensor | None = None
    unfit: str | None = None  # why NumPy's user cannot make this call

    @property
    def name(self) -> str:
        schema = self.function._schema
        name = schema.name.removeprefix("aten::")
        return f"{name}.{schema.overload_name}" if schema.overload_name else name

    def tagged(self, tag: str) -> bool:
        return getattr(torch.Tag, tag) in self.function.tags

    @property
    def random(self) -> bool:
        return self.rng is not None

    def arguments(self, form: Callable[[Frozen], Any], plain: Callable = lambda value: value):
        """Positional and named arguments, each tensor by form, each other value by plain."""

        def one(value: Any) -> Any:
            return form(value) if isinstance(value, Frozen) else plain(value)

        return tree_map(one, self.args, is_leaf=is_leaf), tree_map(
            one, self.kwargs, is_leaf=is_leaf
        )


def is_leaf(value: Any) -> bool:
    return isinstance(value, Frozen)


def written_arguments(function, args: tuple, kwargs: dict) -> dict[str, Any]:
    """By name, what the schema says that a call writes."""
    found = {}
    for place, param in enumerate(function._schema.arguments):
        if param.alias_info is not None and param.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(param.name)
            if value is not None:
                found[param.name] = value
    return found


def around(leaf: Leaf) -> str | None:
    """as_strided counts from where the storage begins; an array has no storage around it."""
    inside = leaf.args and isinstance(leaf.args[0], Frozen) and leaf.args[0].offset
    if inside and leaf.name.startswith("as_strided"):
        return "argument: as_strided outside of the memory that an array says it has"
    return None


class Recorder(TorchDispatchMode):
    """Notes the leaf calls below it, in order."""

    def __init__(self):
        super().__init__()
        self.leaves: list[Leaf] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaf = Leaf(function)
        if function.namespace != "aten":
            leaf.unfit = f"an operator of {function.namespace}::"
        freeze = Freezer()
        try:
            leaf.args, leaf.kwargs = freeze(tuple(args)), freeze(dict(kwargs))
            leaf.unfit = leaf.unfit or around(leaf)
        except NotForNumpy as reason:
            leaf.unfit = leaf.unfit or f"argument: {reason}"
        if leaf.tagged("nondeterministic_seeded"):
            leaf.rng = torch.get_rng_state()
        results = function(*args, **kwargs)
        try:  # afterwards: results may share memory with what was written
            freeze = Freezer()
            leaf.results = freeze(results)
            leaf.written = freeze(written_arguments(function, args, kwargs))
        except NotForNumpy as reason:
            leaf.unfit = leaf.unfit or f"result: {reason}"
        self.leaves.append(leaf)
        return results


def record(program: Callable[[], Any]) -> list[Leaf]:
    """The leaves of one run; its own error passes."""
    recorder = Recorder()
    with recorder:
        program()
    return recorder.leaves
