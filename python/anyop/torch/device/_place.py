# SPDX-License-Identifier: Apache-2.0
"""Which device is meant: by number, text, torch.device, or the current one."""

from __future__ import annotations

from typing import Any

import torch

Place = Any  # None, an index, "anyop:1", torch.device


def name() -> str:
    """Of the device type: "anyop", or what ANYOP_DEVICE_NAME said."""
    return torch._C._get_privateuse1_backend_name()


def index(device: Place = None) -> int:
    """Its number; None, and a device without one, mean the current one. Raises ValueError, TypeError."""
    if device is None:
        return torch.ops.anyop_device.current_device.default()
    if isinstance(device, int) and not isinstance(device, bool):
        count = torch.ops.anyop_device.device_count.default()
        if not 0 <= device < count:
            raise ValueError(f"there is no device {name()}:{device}, only {count}")
        return device
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"expected a device of {name()} or its number, found {device!r}")
    found = torch.device(device)
    if found.type != name():
        raise ValueError(f"expected a device of {name()}, found {found}")
    return index(found.index)
