# SPDX-License-Identifier: Apache-2.0
"""The inner device: the device of torch whose kernels, and inductor's code, run on the same memory."""

from __future__ import annotations

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
