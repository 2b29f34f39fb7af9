# SPDX-License-Identifier: Apache-2.0
"""Fake kernels: results without memory, for tracing and for meta tensors, from the schema's shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from anyop.adapter.check import Check
from anyop.torch.adapter.dtypes import BY_NAME
from anyop.torch.adapter.operators import Operator


def install(operator: Operator, has_out: bool, library: torch.library.Library) -> None:
    """Register the fake kernels of both overloads."""
    _register(operator.qualified, _functional(operator), library)
    if has_out:
        _register(f"{operator.qualified}.out", _out(operator), library)


def _register(name: str, fake: Callable[..., Any], library: torch.library.Library) -> None:
    """As torch.library.register_fake does, which also looks through all modules for its caller: 0.1 ms."""
    holder = torch._library.simple_registry.singleton.find(name).fake_impl
    handle = holder.register(fake, __file__, lib=library, allow_override=True)
    library._registration_handles.append(handle)


def _functional(operator: Operator):
    def fake(*args: Any, **kwargs: Any) -> Any:
        check = Check(operator, operator.fill(args, kwargs))
        wanted = operator.wanted(args, kwargs)
        made = []
        for at, param in enumerate(operator.results):
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
