# SPDX-License-Identifier: Apache-2.0
"""What an operator's file says under `flops`, known to torch.utils.flop_counter.FlopCounterMode."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import register_flop_formula

from anyop.adapter.check import Check
from anyop.torch.operators import Operator


def install(operator: Operator) -> None:
    """Register the formula of an operator that states one."""
    stated = operator.metadata.get("flops")
    if stated is None:
        return

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> Any:
        return Check(operator, operator.fill(args, kwargs)).sizes.evaluate(stated["expression"])

    register_flop_formula(operator.packet, get_raw=True)(formula)
