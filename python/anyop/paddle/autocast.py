# SPDX-License-Identifier: Apache-2.0
"""paddle.amp.auto_cast: an operator whose file says so gets its floating tensors in the lower dtype, or in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle.base import core
from paddle.base.framework import _dygraph_tracer

from anyop.adapter.operators import Operator
from anyop.paddle.framework import FRAMEWORK, name_of

_LEVEL_OFF = core.AmpLevel.O0


def state() -> Any:
    """What says level and dtype: the tracer of eager tensors, else what a graph is traced under."""
    return _dygraph_tracer() or core._get_amp_attrs()


def is_on() -> bool:
    """Whether the call is inside auto_cast."""
    return state()._amp_level != _LEVEL_OFF


@contextmanager
def off() -> Iterator[None]:
    """The tensors are cast: what runs inside takes them as they are."""
    found = state()
    level = found._amp_level
    found._amp_level = _LEVEL_OFF
    try:
        yield
    finally:
        found._amp_level = level


def cast_inputs(operator: Operator, inputs: list[Any]) -> list[Any]:
    """The inputs in the dtype that the operator's file asks for; without `autocast` in it as they are."""
    wanted = operator.metadata.get("autocast")
    if wanted is None:
        return inputs
    dtype = "float32" if wanted == "float32" else name_of(state()._amp_dtype)
    inputs = list(inputs)
    for at in operator.tensors:
        if at not in operator.mutated and dtype in operator.inputs[at]["possible_dtypes"]:
            inputs[at] = _cast(inputs[at], dtype)
    return inputs


def _cast(value: Any, dtype: str) -> Any:
    """The tensors that Paddle's own rules would cast: floating, not float64."""
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype) for item in value]
    if not isinstance(value, (paddle.Tensor, paddle.pir.Value)):
        return value
    name = name_of(value.dtype)
    floating = name in ("float32", "float16", "bfloat16")
    return FRAMEWORK.cast(value, dtype) if floating and name != dtype else value
