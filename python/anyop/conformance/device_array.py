# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a device: there, and back."""

from __future__ import annotations

import numpy as np

from anyop.conformance.device_table import DEVICE_TO_HOST, HOST_TO_DEVICE, Device
from anyop.testing.dlpack import DlpackArray


def there(device: Device, array: np.ndarray) -> DlpackArray:
    """A copy of a contiguous array, in memory of device 0 that nothing frees."""
    memory = device.made("allocate", 0, max(array.nbytes, 1))
    device.copy(0, memory, array.ctypes.data, array.nbytes, HOST_TO_DEVICE)
    return DlpackArray(array, device=(device.table.device_type, 0), data=memory)


def back(device: Device, tensor: DlpackArray) -> np.ndarray:
    """What lies there when all work of the device is done."""
    device.synchronize_device(0)
    found = np.empty_like(tensor.array)
    device.copy(0, found.ctypes.data, tensor.data, found.nbytes, DEVICE_TO_HOST)
    return found
