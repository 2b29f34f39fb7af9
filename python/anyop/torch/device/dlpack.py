# SPDX-License-Identifier: Apache-2.0
"""DLPack's name for tensors of the device: torch knows it only while PrivateUse1 has its first name."""

from __future__ import annotations

import torch

from anyop.torch.device._place import name

EXTENSION = 12  # kDLExtDev
_of_torch = torch.Tensor.__dlpack_device__


def _dlpack_device(self: torch.Tensor):
    """As torch.Tensor.__dlpack_device__; (kDLExtDev, index) for a tensor of the device."""
    if self.device.type != name():
        return _of_torch(self)
    from torch.utils.dlpack import DLDeviceType

    return DLDeviceType(EXTENSION), self.device.index


def install() -> None:
    torch.Tensor.__dlpack_device__ = _dlpack_device
