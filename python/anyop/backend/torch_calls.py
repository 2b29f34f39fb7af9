# SPDX-License-Identifier: Apache-2.0
"""Calls of torch's kernels from any thread, whatever its callers' modes: tensors over borrowed memory, and the state of
a call. Nothing stays changed behind it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

_CPU, _CUDA = 1, 2  # DLDeviceType
_RAW = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class TorchCalls:
    """What is looked up in torch once."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        keys, c = torch._C.DispatchKey, torch._C
        self._include = c.DispatchKeySet(keys.BackendSelect)
        self._exclude = c.DispatchKeySet(keys.ADInplaceOrView)
        for name in dir(keys):
            if name.startswith(("Autograd", "Autocast")):
                self._exclude |= c.DispatchKeySet(getattr(keys, name))

    @contextlib.contextmanager
    def state(self, device_type: int, device_id: int, stream: int) -> Iterator[None]:
        """Plain kernels and nothing else: no gradients, autocast, modes, tracers; on the device and stream of the call.

        The dispatcher's keys of this thread are replaced as a whole, so that a mode of a later torch is off, too.
        """
        c = self.torch._C
        with c._ForceDispatchKeyGuard(self._include, self._exclude), c.DisableTorchFunction():
            if device_type != _CUDA:
                yield
                return
            with self._on_stream(device_id, stream):
                yield

    def _on_stream(self, device_id: int, stream: int) -> contextlib.AbstractContextManager:
        cuda = self.torch.cuda
        if stream == 0:
            return cuda.stream(cuda.default_stream(device_id))
        return cuda.stream(cuda.ExternalStream(stream, device=device_id))

    def tensor(self, view: Any) -> Any:
        """A tensor on a view's memory; one dimension with a negative stride makes it a copy."""
        if min(view.strides, default=0) < 0:
            turned, dims = self._turned(view)
            return turned.flip(dims)
        return self.torch.from_dlpack(view.__dlpack__())

    def place(self, view: Any) -> Any | None:
        """A tensor to write to; None where only write() can."""
        return None if min(view.strides, default=0) < 0 else self.tensor(view)

    def write(self, view: Any, values: Any) -> None:
        """Copies values to a place of the same shape."""
        if min(view.strides, default=0) < 0:
            turned, dims = self._turned(view)
            turned.copy_(values.flip(dims))
        else:
            self.tensor(view).copy_(values)

    def _turned(self, view: Any) -> tuple[Any, list[int]]:
        """The view with its negative strides made positive, which torch cannot have, and their dimensions."""
        if view.device_type != _CPU:
            raise NotImplementedError("a tensor has a negative stride, which torch has not on a device")
        import numpy as np

        dims = [at for at, stride in enumerate(view.strides) if stride < 0]
        array = np.flip(np.asarray(view), dims)
        tensor = self.torch.from_numpy(array)
        if view.dtype in _RAW:
            tensor = tensor.view(getattr(self.torch, view.dtype))
        return tensor, dims


def shape_text(shape: Sequence[int]) -> str:
    """(2, 3) for messages."""
    return f"({', '.join(map(str, shape))})"
