# SPDX-License-Identifier: Apache-2.0
"""Fake kernels: results without memory, for tracing and for meta tensors, from the schema's shapes and dtypes."""

from __future__ import annotations

from typing import Any

import torch

from anyop.adapter.check import Check
from anyop.torch.dtypes import BY_NAME
from anyop.torch.operators import Operator


def install(operator: Operator, library: torch.library.Library) -> None:
    """Register the fake kernels of both overloads."""
    torch.library.register_fake(operator.qualified, _functional(operator), lib=library)
    if operator.out is not None:
        torch.library.register_fake(f"{operator.qualified}.out", _out(operator), lib=library)


def _functional(operator: Operator):
    results = operator.results

    def fake(*args: Any, **kwargs: Any) -> Any:
        check = Check(operator, operator.fill(args, kwargs))
        wanted = operator.wanted(args, kwargs)
        made = []
        for at, param in enumerate(results):
            if param["optional"] and not wanted >> at & 1:
                made.append(None)
                continue
            shape, dtype = check.result(param)
            made.append(torch.empty(shape, dtype=BY_NAME[dtype], device=check.device))
        if not made:
            return None
        return made[0] if len(made) == 1 else tuple(made)

    return fake


def _out(operator: Operator):
    def fake(*args: Any, **kwargs: Any) -> None:
        check = Check(operator, operator.fill(args, kwargs))
        for at, param in enumerate(operator.results, operator.count):
            given = kwargs[param["name"]] if param["name"] in kwargs else args[at]
            check.given(param, given)

    return fake
