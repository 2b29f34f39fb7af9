# SPDX-License-Identifier: Apache-2.0
"""Arrays on a device of anyop, such as opencl: memory that NumPy cannot hold, and torch's device."""

from __future__ import annotations

import ctypes
import importlib
import os
import weakref
from functools import cached_property

import numpy as np
from anyop.conformance.device_table import DEVICE_TO_HOST, HOST_TO_DEVICE, Device, Refused, use
from anyop.testing.dlpack import DlpackArray

from . import InputError
from .frameworks import Framework, Torch


class DeviceMemory:
    """Bytes of the device; they go back with the last array that lies in them."""

    def __init__(self, device: Device, size: int):
        self.device, self.size = device, size
        self.address = device.made("allocate", 0, size)
        weakref.finalize(self, device.free, 0, self.address)

    def copy(self, array: np.ndarray, direction: int) -> None:
        """From or to a contiguous array of this size, which has been read or is there then."""
        if direction == HOST_TO_DEVICE:  # on the stream that operators run on: none waits for it
            self.device.copy_on(0, None, self.address, array.ctypes.data, self.size, direction)
        else:
            self.device.copy(0, array.ctypes.data, self.address, self.size, direction)


class DeviceArray:
    """Where elements lie in memory of the device: views as NumPy makes them, values by DLPack alone.

    places: an array at the device's addresses, which the CPU must not touch.
    """

    def __init__(self, places: np.ndarray, memory: DeviceMemory):
        self.places, self.memory = places, memory

    @cached_property
    def _shown(self) -> DlpackArray:  # many views are never shown
        return DlpackArray(self.places, device=(self.memory.device.table.device_type, 0))

    def __dlpack__(self, **options):
        return self._shown.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._shown.__dlpack_device__()

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index) -> DeviceArray:
        return DeviceArray(self.places[index], self.memory)

    def reshape(self, *shape: int) -> DeviceArray:
        if not self.places.flags.c_contiguous:
            raise ValueError("elements that are not one in memory would have to be copied")
        return DeviceArray(self.places.reshape(*shape), self.memory)

    def transpose(self, *axes: int) -> DeviceArray:
        return DeviceArray(self.places.transpose(*axes), self.memory)


class NumpyOnDevice(Framework):
    """NumPy on the host, and memory of the device in its place for operators."""

    def __init__(self, name: str):
        super().__init__()
        try:
            self.device = Device(name)
            self.device.set_current(0)
            use(self.device)
        except (LookupError, ValueError) as error:
            raise InputError(str(error.args[0])) from None
        except Refused as error:
            raise InputError(error.text) from None

    def empty(self, shape, dtype=np.float32) -> DeviceArray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = DeviceMemory(self.device, count)
        bytes_there = (ctypes.c_char * count).from_address(memory.address)
        return DeviceArray(np.ndarray(shape, dtype, bytes_there), memory)

    def tensor(self, array):
        made = self.empty(array.shape, array.dtype)
        made.memory.copy(np.ascontiguousarray(array), HOST_TO_DEVICE)
        return made

    def array(self, tensor):
        found = np.empty(tensor.places.shape, tensor.places.dtype)
        tensor.memory.copy(found, DEVICE_TO_HOST)
        return found

    def out(self, *kinds):
        made = tuple(self.empty(*kind) for kind in kinds)
        return {"out": made if len(made) > 1 else made[0]}


class TorchOnDevice(Torch):
    """Tensors on torch's device "anyop" over the device."""

    def __init__(self, name: str):
        os.environ["ANYOP_DEVICE_PLATFORM"] = name  # read when that is loaded
        super().__init__()
        try:
            importlib.import_module("anyop.torch.device")
        except (ImportError, RuntimeError) as error:
            raise InputError(str(error).splitlines()[0]) from None

    def tensor(self, array):
        return super().tensor(array).to("anyop")

    def array(self, tensor):
        return tensor.cpu().numpy()


KINDS = {"numpy": NumpyOnDevice, "torch": TorchOnDevice}
