# SPDX-License-Identifier: Apache-2.0
"""What torch itself says: schemas of its registry, and calls of torch.ops.aten with copies of NumPy arrays."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import numpy as np
import torch

SEED = 1234


class Refused(Exception):
    """A call that torch does not take, or a framework has no values for: there is nothing to compare."""


class Param(NamedTuple):
    """A parameter or a result of an overload."""

    name: str
    type: str  # "Tensor", "List[int]", "Optional[ScalarType]"
    count: int | None  # int[2]: 2
    keyword_only: bool
    has_default: bool
    writes: bool
    alias: str  # the set, "" where there is none

    @property
    def hidden_write(self) -> bool:
        """Written in training, which schemas do not say."""
        return self.name in ("running_mean", "running_var")


class Overload(NamedTuple):
    """One overload of ATen, as "add.Tensor" or "relu"."""

    name: str
    params: tuple[Param, ...]
    results: tuple[Param, ...]
    tags: frozenset[str]

    @property
    def base(self) -> str:
        return self.name.partition(".")[0]

    @property
    def kind(self) -> str:
        """One of: functional, view, in-place, out."""
        written = [param for param in self.params if param.writes]
        if written:
            outs = all(p.keyword_only for p in written) or "out" in self.name.partition(".")[2]
            return "out" if outs else "in-place"
        return "view" if any(result.alias for result in self.results) else "functional"


def _param(argument) -> Param:
    alias = argument.alias_info
    return Param(
        argument.name,
        str(argument.real_type),
        argument.N,
        argument.kwarg_only,
        argument.has_default_value(),
        bool(alias and alias.is_write),
        "".join(sorted(alias.before_set)) if alias else "",
    )


def version() -> tuple[int, int]:
    """(2, 13)"""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


@functools.cache
def overloads() -> dict[str, Overload]:
    """All of the registry, by name."""
    found = {}
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        if full.startswith("aten::"):
            name, _, overload = full.partition(".")
            schema = torch._C._get_schema(name, overload)
            _, _, tags = torch._C._get_operation_overload(name, overload) or (0, 0, [])
            found[full[6:]] = Overload(
                full[6:],
                tuple(map(_param, schema.arguments)),
                tuple(map(_param, schema.returns)),
                frozenset(tag.name for tag in tags),
            )
    return found


def has_cpu_kernel(name: str) -> bool:
    full = f"aten::{name}"
    keys = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(full, key) for key in (*keys, "CompositeExplicitAutogradNonFunctional"))


def packet(name: str):
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


@functools.cache
def dtype_names() -> dict[int, str]:
    """Names by the numbers that operators return for dtypes."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    names = {}
    for dtype in dtypes:
        with contextlib.suppress(RuntimeError):
            names[torch.ops.aten.promote_types(dtype, dtype)] = str(dtype).removeprefix("torch.")
    return names


def to_torch(value: Any) -> Any:
    """A copy of an array, or of those in a list, as tensors."""
    if isinstance(value, list | tuple):
        return [to_torch(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(value.copy())


def _argument(value: Any, kind: str) -> Any:
    if isinstance(value, str) and any(n in kind for n in ("ScalarType", "Layout", "MemoryFormat")):
        return getattr(torch, value)
    return to_torch(value)


def as_torch(overload: Overload, args: tuple, kwargs: dict[str, Any]) -> tuple[list, dict]:
    """The arguments as torch.ops takes them; arrays are copied."""
    kinds = {param.name: param.type for param in overload.params}
    positional = [_argument(value, param.type) for value, param in zip(args, overload.params)]
    return positional, {key: _argument(value, kinds[key]) for key, value in kwargs.items()}


def call(name: str, args: list, kwargs: dict[str, Any]) -> Any:
    """torch.ops.aten.<name> without gradients, from a known state of its generator."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        return packet(name)(*args, **kwargs)


def to_numpy(value: Any) -> Any:
    """Results as NumPy holds them; TypeError for a tensor that it cannot hold."""
    if isinstance(value, torch.Tensor):
        if value._is_zerotensor():
            value = value.clone()
        value = value.detach().resolve_conj().resolve_neg()
        if value.dtype is torch.bfloat16:
            import ml_dtypes

            return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return value.numpy()
    if isinstance(value, list | tuple):
        return [to_numpy(item) for item in value]
    return value
