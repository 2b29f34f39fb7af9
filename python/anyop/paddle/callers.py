# SPDX-License-Identifier: Apache-2.0
"""paddle.grad with respect to some inputs only: it wants None for a tensor that leads to none of them.

A PyLayer is not told, and one that returns a gradient there is refused. So the call of paddle.grad is looked up among
the callers, and the graph is followed from the tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import paddle


def _code_of(wrapped: Any) -> Any:
    while hasattr(wrapped, "__wrapped__"):
        wrapped = wrapped.__wrapped__
    return wrapped.__code__


_GRAD = _code_of(paddle.grad)
_BETWEEN = 4  # frames of PyLayer's own


def wanted_inputs() -> Sequence[Any] | None:
    """What paddle.grad was asked for, seen from a backward; None when all leaves get their gradient."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_BETWEEN):
        frame = frame.f_back
        if frame is None:
            return None
        if frame.f_code is _GRAD:
            return frame.f_locals["inputs"]
    return None


def leads_to(node: Any, inputs: Sequence[Any]) -> bool:
    """Whether the gradient graph leads from node to one of these tensors."""
    ends = {tensor.grad_fn.node_ptr() for tensor in inputs}
    seen, ahead = set(), [node]
    while ahead:
        node = ahead.pop()
        if node is None or node.node_ptr() in seen:
            continue
        if node.node_ptr() in ends:
            return True
        seen.add(node.node_ptr())
        ahead.extend(node.next_functions)
    return False
