# SPDX-License-Identifier: Apache-2.0
"""The inner device: the device of torch whose kernels, and inductor's code, run on the same memory."""

from __future__ import annotations

from typing import Any

import torch

from anyop.torch.device._place import name

_ops = torch.ops.anyop_device


def inner_device(device: torch.device) -> torch.device:
    """The device of torch whose kernels run on the same memory; others stay."""
    if device.type != name():
        return device
    if _ops.platform.default() != "cuda":
        return torch.device("cpu")
    index = _ops.current_device.default() if device.index is None else device.index
    return torch.device("cuda", index)


def outer(value: Any, index: int) -> Any:
    """The same bytes as a tensor of the device, where index >= 0.

    On CUDA some tensors lie on the CPU whatever their fake tensors say (attention's seed and offset): they stay there.
    """
    if index < 0 or value is None or (value.is_cpu and _ops.platform.default() == "cuda"):
        return value
    return _ops.outer.default(value, index)
