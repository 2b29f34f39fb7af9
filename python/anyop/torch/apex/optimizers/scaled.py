# SPDX-License-Identifier: Apache-2.0
"""The scale and the flag of a GradScaler, for optimizers of Apex that a GradScaler hands itself to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def scaled_by(grad_scaler: Any, optimizer: Any) -> Iterator[None]:
    """grad_scale and found_inf of the optimizer, on its first parameter's device, without waiting; None: neither."""
    if grad_scaler is None:
        yield
        return
    device = optimizer.param_groups[0]["params"][0].device
    found = grad_scaler._check_inf_per_device(optimizer)
    unscaled = grad_scaler._per_optimizer_states[id(optimizer)]["stage"].name == "UNSCALED"
    optimizer.grad_scale = None if unscaled else grad_scaler._get_scale_async()
    optimizer.found_inf = sum(flag.to(device) for flag in found.values())
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf
