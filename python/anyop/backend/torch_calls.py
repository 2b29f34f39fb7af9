# SPDX-License-Identifier: Apache-2.0
"""Calls of torch's kernels from any thread, whatever its callers' modes: tensors over borrowed memory, and the state of
a call. Nothing stays changed behind it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_CPU, _CUDA = 1, 2  # DLDeviceType
_RAW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # NumPy sees their bits


class TorchCalls:
    """What is looked up in torch once."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        keys, c = torch._C.DispatchKey, torch._C
        self._streams: dict[tuple[int, int], Any] = {}  # by device and handle
        # What torch.from_dlpack ends in, for a capsule.
        self._from_dlpack = getattr(c, "_from_dlpack", torch.from_dlpack)
        self._include = c.DispatchKeySet(keys.BackendSelect)
        self._exclude = c.DispatchKeySet(keys.ADInplaceOrView)
        for name in dir(keys):
            if name.startswith(("Autograd", "Autocast")):
                self._exclude |= c.DispatchKeySet(getattr(keys, name))

    def state(self, device_type: int, device_id: int, stream: int) -> State:
        """Plain kernels and nothing else: no gradients, autocast, modes, tracers; on the device and stream of the call.

        The dispatcher's keys of this thread are replaced as a whole, so that a mode of a later torch is off, too.
        """
        c = self.torch._C
        parts = [c._ForceDispatchKeyGuard(self._include, self._exclude), c.DisableTorchFunction()]
        if device_type == _CUDA and not self._is_current(device_id, stream):
            parts.append(self._on_stream(device_id, stream))
        return State(parts)

    def _is_current(self, device_id: int, stream: int) -> bool:
        """Whether torch has the device and its stream anyway, as for a caller of torch: setting them takes 10 us."""
        c = self.torch._C
        return (
            self.torch.cuda.is_initialized()
            and c._cuda_getDevice() == device_id
            and c._cuda_getCurrentRawStream(device_id) == stream
        )

    def _on_stream(self, device_id: int, stream: int) -> contextlib.AbstractContextManager:
        c, cuda = self.torch._C, self.torch.cuda
        if cuda.is_initialized() and c._cuda_getDevice() == device_id:  # as core has entered it
            known = self._streams.get((device_id, stream))
            if known is None:
                known = (
                    cuda.ExternalStream(stream, device=device_id)
                    if stream
                    else cuda.default_stream(device_id)
                )
                self._streams[device_id, stream] = known
            return _OnStream(c, known)
        if stream == 0:
            return cuda.stream(cuda.default_stream(device_id))
        return cuda.stream(cuda.ExternalStream(stream, device=device_id))

    def tensor(self, view: Any) -> Any:
        """A tensor on a view's memory; a copy where a stride is negative."""
        place = self.place(view)
        return place.tensor.flip(place.turned) if place.turned else place.tensor

    def place(self, view: Any) -> Place:
        """Where a result goes."""
        if min(view.strides, default=0) >= 0:
            return Place(self._from_dlpack(view.__dlpack__()), [], self)
        if view.device_type != _CPU:
            raise NotImplementedError("torch has no negative strides, and one of a tensor is")
        if 0 in view.shape:  # NumPy turns no stride of these
            empty = self.torch.empty(view.shape, dtype=getattr(self.torch, view.dtype))
            return Place(empty, [], self)
        import numpy as np

        turned = [at for at, stride in enumerate(view.strides) if stride < 0]
        tensor = self.torch.from_numpy(np.flip(np.asarray(view), turned))
        if view.dtype in _RAW:
            tensor = tensor.view(getattr(self.torch, view.dtype))
        return Place(tensor, turned, self)

    def function(self, name: str, overload: str) -> Any:
        """What computes an overload."""
        return getattr(getattr(self.torch.ops.aten, name), overload or "default")

    def constant(self, name: str) -> Any:
        """A dtype, or inf, in a text."""
        return getattr(self.torch, name)

    def copy(self, place: Any, values: Any) -> None:
        """Into a tensor of the same shape."""
        place.copy_(values)

    def flip(self, tensor: Any, dims: list[int]) -> Any:
        """A copy, turned round."""
        return tensor.flip(dims)

    def is_contiguous(self, tensor: Any) -> bool:
        """Row-major without gaps."""
        return tensor.is_contiguous()

    def address(self, tensor: Any) -> int:
        """Of the memory."""
        return tensor.data_ptr()

    def dtype(self, tensor: Any) -> Any:
        """Of its elements."""
        return tensor.dtype

    def is_cpu(self, tensor: Any) -> bool:
        """Whether it lies in the memory of the host."""
        return tensor.is_cpu

    def is_inexact(self, tensor: Any) -> bool:
        """Whether its elements are floating-point or complex numbers."""
        return tensor.is_floating_point() or tensor.is_complex()

    def is_narrow(self, tensor: Any) -> bool:
        """Whether ATen computes in float32 for it."""
        return tensor.dtype in (self.torch.float16, self.torch.bfloat16)

    def widen(self, tensor: Any) -> Any:
        """In float32."""
        return tensor.float()


class State:
    """Context managers that are entered in turn and left the other way round; quicker than contextlib's."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __enter__(self) -> None:
        entered = 0
        try:
            for part in self._parts:
                part.__enter__()
                entered += 1
        except BaseException:
            for part in reversed(self._parts[:entered]):
                part.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        failed = None
        for part in reversed(self._parts):
            try:
                part.__exit__(*error)
            except BaseException as other:  # the rest is left all the same
                failed = other
        if failed is not None:
            raise failed


class _OnStream:
    """Makes a stream of the current device the current one: torch.cuda.stream's part that is needed here."""

    __slots__ = ("_before", "_c", "_stream")

    def __init__(self, c: Any, stream: Any) -> None:
        self._c, self._stream = c, stream

    def __enter__(self) -> None:
        stream = self._stream
        self._before = self._c._cuda_getCurrentStream(stream.device_index)
        self._set(stream.stream_id, stream.device_index, stream.device_type)

    def __exit__(self, *error: Any) -> None:
        self._set(*self._before)

    def _set(self, stream_id: int, device_index: int, device_type: int) -> None:
        self._c._cuda_setStream(
            stream_id=stream_id, device_index=device_index, device_type=device_type
        )


@dataclass
class Place:
    """A tensor on memory to be written, and its dimensions that lie in memory the other way round."""

    tensor: Any
    turned: list[int]
    calls: Any  # TorchCalls or AtenCalls

    def write(self, values: Any) -> None:
        """Copies values of the same shape."""
        self.calls.copy(
            self.tensor, self.calls.flip(values, self.turned) if self.turned else values
        )

    @property
    def is_plain(self) -> bool:
        """Whether torch's kernels may write to it: not all can do with strides."""
        return not self.turned and self.calls.is_contiguous(self.tensor)


def shape_text(shape: Sequence[int]) -> str:
    """(2, 3) for messages."""
    return f"({', '.join(map(str, shape))})"
