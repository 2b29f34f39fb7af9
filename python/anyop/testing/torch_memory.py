# SPDX-License-Identifier: Apache-2.0
"""The standard tests on another device by torch's tensors: all memory of a case is copied there, then back.

Each array becomes a tensor with its strides inside the copy of its memory, so that the guards around it see what the
kernel wrote. What torch cannot hold, negative strides, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import numpy_dtype
from anyop.cases.good_cases import Case
from anyop.cases.placed import KINDS
from anyop.cases.subject import Subject

_NEGATIVE = ("rows_back", "back")


def fits_torch(case: Case) -> bool:
    """Whether torch has tensors of all its layouts."""
    return not any(layout in _NEGATIVE for layout in case.layouts.values())


def takes_less(error: object, device: str, asked: str = "") -> bool:
    """Whether a call is refused since the device's kernels take less than the operator, as their `when` says.

    asked: the device of the tensors, where it is another that stands on this one.
    """
    text = str(error)
    return f"has no kernel for {asked or device} (" in text and f"; {device} takes " in text


def fits_device(subject: Subject, case: Case) -> bool:
    """Whether another device than the CPU takes its layouts as well: there no input is copied."""
    kinds = {p["name"]: KINDS[p["layout"]] for p in subject.tensors + subject.results}
    return fits_torch(case) and all(kind in kinds[name] for name, kind in case.layouts.items())


def through_torch(subject: Subject, device: str) -> Subject:
    """The operator as testing.check_case takes it, run on torch's tensors of that device."""
    made = replace(subject.on(device), function=on_device(subject.function, device))
    if "reference" in subject.__dict__:
        made.__dict__["reference"] = subject.reference  # loaded once
    return made


def on_device(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The function of NumPy arrays that calls this one with tensors of the device."""

    def call(*positional: Any, **named: Any) -> Any:
        memory = DeviceMemory(device)
        found = function(
            *map(memory.there, positional), **{k: memory.there(v) for k, v in named.items()}
        )
        memory.download()
        return tuple(map(memory.back, found)) if isinstance(found, tuple) else memory.back(found)

    return call


class DeviceMemory:
    """The arrays of one call on the device, and the way back."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, device
        self.owners: dict[int, tuple[np.ndarray, Any]] = {}  # bytes here and there
        self.given: list[tuple[Any, np.ndarray]] = []  # tensors and their arrays

    def there(self, value: Any) -> Any:
        """A tensor for an array, also in a list; all else as it is."""
        if isinstance(value, list):
            return [self.there(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        tensor = self._upload(value)
        self.given.append((tensor, value))
        return tensor

    def _upload(self, array: np.ndarray) -> Any:
        torch, owner = self.torch, array
        dtype = getattr(torch, "bool" if array.dtype.kind == "b" else array.dtype.name)
        if not array.size:  # as torch's own: it lies nowhere
            return torch.empty(array.shape, dtype=dtype, device=self.device)
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in self.owners:
            flat = owner.reshape(-1).view(np.uint8)
            self.owners[id(owner)] = (flat, torch.from_numpy(flat.copy()).to(self.device))
        flat, bytes_there = self.owners[id(owner)]
        offset = array.ctypes.data - flat.ctypes.data
        assert offset % array.itemsize == 0 and all(s % array.itemsize == 0 for s in array.strides)
        steps = [step // array.itemsize for step in array.strides]
        tensor = torch.empty(0, dtype=dtype, device=self.device)
        storage = bytes_there.untyped_storage()
        return tensor.set_(storage, offset // array.itemsize, array.shape, steps)

    def download(self) -> None:
        """Waits, and brings all bytes back to where they came from."""
        for flat, there in self.owners.values():
            np.copyto(flat, there.cpu().numpy())

    def back(self, value: Any) -> Any:
        """The array that a tensor was made of, else a new one."""
        if not isinstance(value, self.torch.Tensor):
            return value
        for tensor, array in self.given:
            if tensor is value:
                return array
        if value.device.type != self.torch.device(self.device).type or not value.is_contiguous():
            raise TypeError(
                f"the result is on {value.device}, strides {value.stride()}; expected a contiguous "
                f"tensor on {self.device}"
            )
        name = str(value.dtype).removeprefix("torch.")
        flat = value.detach().reshape(-1).view(self.torch.uint8).cpu().numpy()
        return np.array(flat).view(numpy_dtype(name)).reshape(value.shape)
