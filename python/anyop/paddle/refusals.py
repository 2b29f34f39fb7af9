# SPDX-License-Identifier: Apache-2.0
"""What is said where no gradient can be recorded: it is never lost in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from anyop.adapter.gradient import Gradient
from anyop.adapter.operators import Operator


def wants_gradient(value: Any) -> bool:
    """Whether a tensor, or one in a list, is differentiated. Eager tensors and values of graphs say it alike."""
    return any(tensor.stop_gradient is False for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if hasattr(item, "stop_gradient"):
            yield item


def out_error(operator: Operator) -> RuntimeError:
    """An answer to out= where a gradient would be recorded."""
    return RuntimeError(
        f"{operator.name}: with results given (out=) no gradient can be recorded, but one of the tensors wants one "
        "(stop_gradient=False); use paddle.no_grad() or .detach()"
    )


def no_gradient(operator: Operator, why: str, values: Sequence[Any]) -> NotImplementedError:
    """An answer for an operator without a gradient."""
    found = [operator.names[at] for at in operator.tensors if wants_gradient(values[at])]
    names = f"{found[0]} wants one" if found else "an argument wants one"
    return NotImplementedError(
        f"{operator.name}: {why}, and {names} (stop_gradient=False); use paddle.no_grad() or .detach()"
    )


def refuse_inputs(gradient: Gradient, inputs: Sequence[Any], called: str) -> None:
    """An error for an input that wants a gradient which the backward does not compute."""
    for at in gradient.refused:
        if wants_gradient(inputs[at]):
            name = gradient.forward.names[at]
            raise NotImplementedError(
                f"{called}: {name} wants a gradient (stop_gradient=False), which the operator does "
                f"not compute; use {name}.detach()"
            )
