# SPDX-License-Identifier: Apache-2.0
"""Constants where a tensor is expected: a Python number beside a tensor, NumPy's array beside JAX's.

The C function asks when a call has failed with a TypeError; it runs once more with what is found here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyop

_KINDS = (bool, int, float)
_REAL = ("float", "bfloat", "complex")
_BITS = {
    f"{'' if signed else 'u'}int{n}": (signed, n) for signed in (0, 1) for n in (8, 16, 32, 64)
}


Maker = Callable[[Any, Any, str], Any]  # number, tensor beside it, dtype -> tensor


def promoted(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Indices of the arguments that may be numbers: a result's dtype is promoted from theirs."""
    rules = [result["dtypes"] for result in metadata["results"]]
    inputs = {param["name"] for param in metadata["inputs"]}
    pairs = [rule["of"] for rule in rules if rule["rule"] == "promote"]
    names = {name for pair in pairs if inputs.issuperset(pair) for name in pair}
    return tuple(
        at
        for at, param in enumerate(metadata["inputs"])
        if param["name"] in names and not param["mutated"]
    )


def stated(metadata: Mapping[str, Any]) -> dict[int, str]:
    """Indices of the arguments that `numbers` names, with the dtypes that numbers take there."""
    names = metadata.get("numbers", ())
    inputs = enumerate(metadata["inputs"])
    return {at: param["possible_dtypes"][0] for at, param in inputs if param["name"] in names}


def replaced(op: str, inputs: list[Any]) -> list[Any] | None:
    """What the C function asks: the inputs with tensors for constants; None where there is none to put."""
    metadata = anyop.metadata(op)
    params, found = metadata["inputs"], list(inputs)
    names = [p["name"] for p in params]
    changed = numbers_replaced(op, names, promoted(metadata), found, _make)
    changed |= stated_replaced(op, names, stated(metadata), found, _make)
    plain = [
        at
        for at, p in enumerate(params)
        if p["kind"] == "Tensor" and not p["list"] and not p["mutated"]
    ]
    return found if _arrays_replaced(found, plain) or changed else None


def numbers_replaced(
    op: str, names: Sequence[str], places: Sequence[int], inputs: list[Any], make: Maker
) -> bool:
    """Puts tensors for numbers; whether there were any. ValueError: the dtype cannot hold a number."""
    numbers = [at for at in places if type(inputs[at]) in _KINDS]
    if not numbers:
        return False
    others = [inputs[at] for at in places if at not in numbers and hasattr(inputs[at], "dtype")]
    for at in numbers if others else ():
        dtype = str(others[0].dtype).rpartition(".")[2]
        made = _tensor(f"{op}: {names[at]}", inputs[at], others[0], dtype, make)
        if made is None:  # of an unknown framework, or a dtype without numbers: the core names it
            return False
        inputs[at] = made
    return bool(others)


def stated_replaced(
    op: str, names: Sequence[str], places: Mapping[int, str], inputs: list[Any], make: Maker
) -> bool:
    """Puts tensors for numbers where `numbers` says so, on the device of the call's first tensor; nothing waits."""
    numbers = [at for at in places if type(inputs[at]) in _KINDS]
    tensors = (
        [
            item
            for value in inputs
            for item in (value if isinstance(value, (list, tuple)) else (value,))
        ]
        if numbers
        else []
    )
    like = next((item for item in tensors if hasattr(item, "dtype")), None)
    if like is None:
        return False
    for at in numbers:
        made = _tensor(f"{op}: {names[at]}", inputs[at], like, places[at], make)
        if made is None:
            return False
        inputs[at] = made
    return True


def _tensor(where: str, value: Any, like: Any, dtype: str, make: Maker) -> Any:
    """The number with this dtype, or the least that it needs: float32, int64."""
    if isinstance(value, float) and not dtype.startswith(_REAL):
        dtype = "float32"
    if dtype == "bool" and type(value) is int:
        dtype = "int64"
    if dtype in _BITS:
        signed, bits = _BITS[dtype]
        if not -(2 ** (bits - 1)) * signed <= value < 2 ** (bits - signed):
            text = value if abs(value) < 1 << 64 else "an int of more than 64 bits"
            raise ValueError(f"{where} is {text}, which {dtype} cannot hold")
    elif dtype.startswith(_REAL):
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(f"{where} is out of the range of float64") from None
        if abs(value) > 3e38 and dtype not in ("float64", "complex128"):
            value = ctypes.c_float(value).value  # inf: torch would refuse it, and NumPy warn
    elif dtype != "bool":
        return None
    return make(value, like, dtype)


def _make(value: Any, like: Any, dtype: str) -> Any:
    """A tensor of no dimension, of the framework and on the device of the one beside it; None: of an unknown one."""
    torch, jax, paddle, cupy = map(sys.modules.get, ("torch", "jax", "paddle", "cupy"))
    if torch and isinstance(like, torch.Tensor):
        return torch_number(torch, value, like, dtype)
    if jax and isinstance(like, jax.Array):
        narrow = dtype == "int64" and not jax.config.jax_enable_x64
        return jax.numpy.asarray(value, "int32" if narrow else dtype)
    if paddle and isinstance(like, (paddle.Tensor, paddle.pir.Value)):
        return paddle.full([], value, dtype)
    if cupy and isinstance(like, cupy.ndarray):
        return cupy.full((), value, like.dtype if dtype == str(like.dtype) else dtype)
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(like, (numpy.ndarray, numpy.generic)):
        return numpy.array(value, like.dtype if dtype == str(like.dtype) else dtype)
    return None


def torch_number(torch: Any, value: Any, like: Any, dtype: str) -> Any:
    """A tensor of no dimension beside another."""
    kind = getattr(torch, dtype)
    if like.is_nested:  # it is refused by name later on, and knows no new_full
        return torch.full((), value, dtype=kind, device=like.device)
    try:
        return like.new_full((), value, dtype=kind)
    except AssertionError:  # a real tensor under a FakeTensorMode; the call will refuse it by name
        return torch.full((), value, dtype=kind, device=like.device)


def _arrays_replaced(values: list[Any], places: Sequence[int]) -> bool:
    """Puts JAX's arrays for NumPy's that stand beside them, as jax.numpy does; whether there were any.

    They are bound to no device, so that the program runs where the others lie.
    """
    jax, numpy = sys.modules.get("jax"), sys.modules.get("numpy")
    if not (jax and numpy):
        return False
    # No generator: it would turn a StopIteration of an odd object's __class__ into another error.
    if not any([isinstance(values[at], jax.Array) for at in places]):  # noqa: C419
        return False
    changed = False
    for at in places:
        if type(values[at]) is numpy.ndarray:
            try:
                array = jax.numpy.asarray(values[at])
            except TypeError:  # a dtype that JAX lacks: refused by name behind this
                continue
            if array.dtype == values[at].dtype:  # else it would be narrowed in silence
                values[at], changed = array, True
    return changed
