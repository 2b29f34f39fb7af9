# SPDX-License-Identifier: Apache-2.0
"""The scope of anyop.use in torch: as a value that Dynamo reads with a guard, and what it traces for a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyop import _scope
from anyop._load import core

# Its attribute `text` is the scope of the calling thread or task. Dynamo guards what it has read there.
thread = core.ThreadScope(_scope.now)
# The scopes around blocks that are being traced; empty at all other times.
_outer: list[str | None] = []


def trace_blocks() -> None:
    """Let Dynamo trace blocks inside compiled code. For the moment when torch._dynamo has been imported."""
    import torch

    mistake = torch._dynamo.assume_constant_result(_mistake)

    def check(text: str) -> None:
        found = mistake(text)
        if found:
            raise ValueError(found)

    traced: dict[Callable[..., Any], Callable[..., Any]] = {
        _scope.enter: _enter,
        _scope.leave: _leave,
        _scope.current.get: lambda: thread.text,
        core.check_scope: check,
    }
    for function, body in traced.items():
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(body)


def _enter(text: str | None, owner: object) -> None:
    _outer.append(thread.text)
    thread.text = text


def _leave(owner: object) -> None:
    thread.text = _outer.pop()


def _mistake(text: str) -> str:
    try:
        core.check_scope(text)
    except ValueError as error:
        return str(error)
    return ""
