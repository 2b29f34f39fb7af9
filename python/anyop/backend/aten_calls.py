# SPDX-License-Identifier: Apache-2.0
"""Calls of ATen by anyop's own entry, without torch's Python: tensors are core's views and AtenTensors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from anyop.aten._open import opened
from anyop.backend.torch_calls import Place

_CPU, _CUDA = 1, 2  # DLDeviceType


class AtenCalls:
    """As TorchCalls. Dtypes are their names."""

    def __init__(self) -> None:
        self._core = opened()
        self._alias, self._flip, self._as_type, self.copy, self._to = (
            self.function(*name.split("."))
            for name in ("alias.", "flip.", "view.dtype", "copy_.", "_to_copy.")
        )

    def function(self, name: str, overload: str) -> Callable[..., Any]:
        """What computes an overload. Raises LookupError."""
        try:
            return self._core.aten_function(f"{name}.{overload or 'default'}")
        except AttributeError as error:
            raise LookupError(str(error)) from None

    def constant(self, name: str) -> Any:
        """A dtype, or inf, in a text."""
        return float(name) if name == "inf" else sys.intern(name)

    @contextlib.contextmanager
    def state(self, device_type: int, device_id: int, stream: int) -> Iterator[None]:
        """On the stream of the call. Of this thread's state the entry sees nothing anyway."""
        if device_type != _CUDA:
            yield
            return
        before = self._core.aten_on_stream(device_id, stream)
        try:
            yield
        finally:
            self._core.aten_on_stream(*before)

    def tensor(self, view: Any) -> Any:
        """A view is a tensor; one that lies the other way round is copied."""
        if min(view.strides, default=0) >= 0:
            return view
        place = self.place(view)
        return self.flip(place.tensor, place.turned) if place.turned else place.tensor

    def place(self, view: Any) -> Place:
        """Where a result goes."""
        turned = [at for at, stride in enumerate(view.strides) if stride < 0]
        if not turned or 0 in view.shape:  # an empty one is never touched
            return Place(view, [], self)
        if view.device_type != _CPU:
            raise NotImplementedError("torch has no negative strides, and one of a tensor is")
        import numpy as np

        tensor = self._alias(np.flip(np.asarray(view), turned), like="aten")
        return Place(self._as_type(tensor, view.dtype), turned, self)

    def flip(self, tensor: Any, dims: list[int]) -> Any:
        """A copy, turned round."""
        return self._flip(tensor, dims)

    def is_contiguous(self, view: Any) -> bool:
        """Row-major without gaps."""
        expected = 1
        for size, stride in zip(reversed(view.shape), reversed(view.strides)):
            if size != 1 and stride != expected:
                return 0 in view.shape
            expected *= size
        return True

    def address(self, tensor: Any) -> int | None:
        """Of the memory, where it is the caller's."""
        return getattr(tensor, "data_ptr", None)

    def dtype(self, tensor: Any) -> str:
        """Its name."""
        return sys.intern(tensor.dtype)

    def is_cpu(self, tensor: Any) -> bool:
        """Whether it lies in the memory of the host."""
        return tensor.__dlpack_device__()[0] == _CPU

    def is_inexact(self, tensor: Any) -> bool:
        """Whether its elements are floating-point or complex numbers."""
        return tensor.dtype.startswith(("float", "bfloat", "complex"))

    def is_narrow(self, tensor: Any) -> bool:
        """Whether ATen computes in float32 for it."""
        return tensor.dtype in ("float16", "bfloat16")

    def widen(self, tensor: Any) -> Any:
        """In float32."""
        return self._to(tensor, dtype="float32")
