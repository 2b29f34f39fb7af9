# SPDX-License-Identifier: Apache-2.0
"""torch.anyop.amp: torch.amp for this device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from anyop.torch.device._place import name

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.autocast):  # noqa: N801, the name in torch.cuda.amp
    """torch.autocast("anyop", ...)."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__(name(), dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler("anyop", ...)."""

    def __init__(self, *options: Any, **named: Any) -> None:
        super().__init__(name(), *options, **named)


def custom_fwd(fwd: Callable | None = None, **named: Any) -> Callable:
    """torch.amp.custom_fwd of this device."""
    if fwd is None:
        return functools.partial(custom_fwd, **named)
    return torch.amp.custom_fwd(fwd, device_type=name(), **named)


def custom_bwd(bwd: Callable) -> Callable:
    """torch.amp.custom_bwd of this device."""
    return torch.amp.custom_bwd(bwd, device_type=name())
