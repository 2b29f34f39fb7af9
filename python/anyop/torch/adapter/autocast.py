# SPDX-License-Identifier: Apache-2.0
"""torch.autocast: an operator whose file says so gets its floating tensors in the lower dtype, or in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from anyop.torch.adapter.dtypes import name_of
from anyop.torch.adapter.operators import Operator

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "privateuseone": "AutocastPrivateUse1"}


def install(operator: Operator, wanted: str | None, library: torch.library.Library) -> None:
    """Register a rule for each kind of device; without `autocast` in its file an operator runs as it is."""
    if wanted is None:
        return
    for device, key in _KEYS.items():
        library.impl(operator.short, _kernel(operator, wanted, device, key), key)


def _kernel(operator: Operator, wanted: str, device: str, key: str) -> Callable[..., Any]:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        name = torch._C._get_privateuse1_backend_name() if device == "privateuseone" else device
        dtype = torch.float32 if wanted == "float32" else torch.get_autocast_dtype(name)
        inputs = operator.fill(args, kwargs)
        for at in operator.tensors:
            if (
                at not in operator.mutated
                and name_of(dtype) in operator.inputs[at]["possible_dtypes"]
            ):
                inputs[at] = _cast(inputs[at], dtype, name)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operator.call(inputs, operator.wanted(args, kwargs), operator.scope(kwargs))

    return kernel


def _cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    """The tensors that torch's own rules would cast: floating, not float64, on this kind of device."""
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype, device) for item in value]
    if value is None or value.device.type != device:
        return value
    if not value.is_floating_point() or value.dtype == torch.float64:
        return value
    return value.to(dtype)
