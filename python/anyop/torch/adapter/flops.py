# SPDX-License-Identifier: Apache-2.0
"""What an operator's file says under `flops`, known to torch.utils.flop_counter.FlopCounterMode."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from anyop._when_imported import when_imported
from anyop.adapter.check import Check
from anyop.torch.adapter.operators import Operator

_COUNTER = "torch.utils.flop_counter"  # it imports Triton: not before somebody counts


def install(operators: list[Operator]) -> None:
    """Register the formulas of operators that state one."""

    def register(counter: ModuleType) -> None:
        for operator in operators:
            counter.register_flop_formula(operator.packet, get_raw=True)(_formula(operator))

    if operators:
        when_imported(_COUNTER, register)


def _formula(operator: Operator) -> Callable[..., Any]:
    stated = operator.metadata["flops"]["expression"]

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> Any:
        return Check(operator, operator.fill(args, kwargs)).sizes.evaluate(stated)

    return formula
