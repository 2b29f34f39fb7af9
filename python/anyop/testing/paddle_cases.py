# SPDX-License-Identifier: Apache-2.0
"""The standard tests by way of Paddle: the same cases, with its tensors in place of arrays, in the same memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import numpy_dtype
from anyop.cases.subject import Subject


def through_paddle(subject: Subject) -> Subject:
    """The operator as testing.check_case takes it: arrays in, arrays out, and Paddle's tensors in between."""
    function = subject.function

    def call(*args: Any, **kwargs: Any) -> Any:
        pairs: list[tuple[Any, np.ndarray]] = []
        found = function(
            *(_in(value, pairs) for value in args),
            **{name: _in(value, pairs) for name, value in kwargs.items()},
        )
        if isinstance(found, tuple):
            return tuple(_out(value, pairs) for value in found)
        return _out(found, pairs)

    return replace(subject, function=call)


def to_paddle(array: np.ndarray) -> Any:
    """A tensor in the array's memory, strides and all; Paddle has no negative ones.

    Static graphs and threads need its clone(): see "Memory from NumPy" in docs/paddle.md.
    """
    import paddle

    if array.dtype.isbuiltin == 1:
        return paddle.utils.dlpack.from_dlpack(array)
    bits = paddle.utils.dlpack.from_dlpack(array.view(f"i{array.itemsize}"))  # of ml_dtypes
    return bits.view(getattr(paddle, array.dtype.name))


def to_array(tensor: Any) -> np.ndarray:
    """Its values, copied."""
    name = str(tensor.dtype).removeprefix("paddle.")
    found = np.array(tensor.numpy())
    return found if found.dtype.name == name else found.view(numpy_dtype(name))


def _in(value: Any, pairs: list[tuple[Any, np.ndarray]]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_in(item, pairs) for item in value)
    if not isinstance(value, np.ndarray):
        return value
    tensor = to_paddle(value)
    pairs.append((tensor, value))
    return tensor


def _out(value: Any, pairs: list[tuple[Any, np.ndarray]]) -> Any:
    """The array whose tensor this is, else a new one; TypeError for what is no tensor of Paddle."""
    import paddle

    if value is None:
        return None
    for tensor, array in pairs:
        if tensor is value:
            return array
    if not isinstance(value, paddle.Tensor):
        raise TypeError(f"a {type(value).__name__} came out, expected a paddle.Tensor")
    return to_array(value)
