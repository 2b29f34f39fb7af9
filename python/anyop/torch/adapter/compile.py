# SPDX-License-Identifier: Apache-2.0
"""torch.compile: code that calls anyop.<op> is traced as a call of torch.ops.<namespace>.<op>.

Dynamo takes almost as long to import as torch; it is told when it is there, not before.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from anyop._when_imported import when_imported
from anyop.torch.adapter import scope
from anyop.torch.adapter.dispatch import call
from anyop.torch.adapter.operators import Operator

_waiting: list[Operator] = []
_traced: dict[str, Operator] = {}


def install(operator: Operator) -> None:
    """Let Dynamo trace the operator's C function, now or as soon as Dynamo is imported."""
    _waiting.append(operator)
    if len(_waiting) == 1:
        when_imported("torch._dynamo", _start)


def _start(dynamo: ModuleType) -> None:
    """Dynamo is there: tell it what waits."""
    if not _traced:
        scope.trace_blocks()
    while _waiting:
        _substitute(_waiting.pop())


def _substitute(operator: Operator) -> None:
    name = operator.name
    operator.read()  # Dynamo could not trace that
    _traced[name] = operator

    def traced(*args: Any, **kwargs: Any) -> Any:
        return call(_traced[name], args, kwargs)

    torch.compiler.substitute_in_graph(operator.function, skip_signature_check=True)(traced)
