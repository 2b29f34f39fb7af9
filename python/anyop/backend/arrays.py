# SPDX-License-Identifier: Apache-2.0
"""Core's views of memory as arrays of a framework, and what a function returned back into them."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from anyop import _frameworks
from anyop._load import core
from anyop.backend.torch_calls import TorchCalls

CPU, CUDA = 1, 2  # DLDeviceType


class Numpy:
    """Arrays without copies, on the CPU. bfloat16 and float8 are ml_dtypes'."""

    device = "cpu"  # the only one; "any" where the framework has more
    writes = True  # whether a function may be given its results' places

    def __init__(self) -> None:
        self.numpy = importlib.import_module("numpy")

    def scope(self, device_type: int, device_id: int, stream: int) -> AbstractContextManager:
        """Around one call."""
        if device_type != CPU:
            raise NotImplementedError("it computes on the CPU")
        return nullcontext()

    def dtype(self, name: str) -> Any:
        """What a ScalarType argument is to the function."""
        if hasattr(self.numpy, name):
            return self.numpy.dtype(name)
        try:
            import ml_dtypes
        except ImportError:
            raise NotImplementedError(
                f"{name} in NumPy needs ml_dtypes, which is not installed"
            ) from None
        return self.numpy.dtype(getattr(ml_dtypes, name))

    def take(self, view: Any) -> Any:
        """The argument for a view."""
        return self.place(view)

    def place(self, view: Any) -> Any | None:
        """An array that shares the view's memory; None where the framework has none of this layout."""
        array, dtype = self.numpy.asarray(view), self.dtype(view.dtype)
        return array if array.dtype == dtype else array.view(dtype)

    def new(self, view: Any) -> Any:
        """An array of the view's shape and dtype, for what place() cannot."""
        return self.numpy.empty(view.shape, self.dtype(view.dtype))

    def is_array(self, value: Any) -> bool:
        """Whether a returned value is an array; NumPy's scalars count."""
        return isinstance(value, (self.numpy.ndarray, self.numpy.generic))

    def dtype_name(self, array: Any) -> str:
        """`float32`."""
        return array.dtype.name

    def put(self, view: Any, array: Any) -> None:
        """Copies what has the view's shape and dtype."""
        self.numpy.copyto(self.place(view), array, casting="no")


class Torch(Numpy):
    """Tensors without copies, on any device that torch has."""

    device = "any"

    def __init__(self) -> None:
        self.torch = _frameworks.import_real_torch()
        self.calls = TorchCalls(self.torch)
        self.has_cuda = False  # is not known yet

    def scope(self, device_type: int, device_id: int, stream: int) -> AbstractContextManager:
        """No gradients, modes or autocast; the caller's device and stream."""
        if device_type == CUDA and not self.has_cuda:
            self.has_cuda = self.torch.cuda.is_available()  # asks the driver
            if not self.has_cuda:
                raise NotImplementedError(f"torch {self.torch.__version__} finds no CUDA device")
        return self.calls.state(device_type, device_id, stream)

    def dtype(self, name: str) -> Any:
        """torch.float32."""
        return getattr(self.torch, name)

    def take(self, view: Any) -> Any:
        """A tensor that shares the view's memory; a copy where strides are negative."""
        return self.calls.tensor(view)

    def place(self, view: Any) -> Any | None:
        """A tensor that shares the view's memory; none where strides are negative."""
        place = self.calls.place(view)
        return None if place.turned else place.tensor

    def new(self, view: Any) -> Any:
        """A tensor on the CPU, where alone strides can be negative."""
        return self.torch.empty(view.shape, dtype=self.dtype(view.dtype), device="cpu")

    def is_array(self, value: Any) -> bool:
        """A tensor."""
        return isinstance(value, self.torch.Tensor)

    def dtype_name(self, array: Any) -> str:
        """`float32`."""
        return str(array.dtype).removeprefix("torch.")

    def put(self, view: Any, array: Any) -> None:
        """Copies on the current stream, from whatever device."""
        self.calls.place(view).write(array)


class Jax(Numpy):
    """Copies in and out, on the CPU: arrays of JAX never change."""

    writes = False

    def __init__(self) -> None:
        super().__init__()
        self.jax = importlib.import_module("jax")

    def scope(self, device_type: int, device_id: int, stream: int) -> AbstractContextManager:
        """With 64-bit dtypes, on JAX's CPU device. Not for JAX: its program would wait for one that waits for it."""
        if core.xla_waits():
            raise NotImplementedError(
                "it is written in JAX, and cannot run inside a program of JAX"
            )
        super().scope(device_type, device_id, stream)
        wide: Any = getattr(self.jax, "enable_x64", None)
        if wide is None:  # before 0.8
            from jax import experimental

            wide = experimental.enable_x64
        scope = ExitStack()
        scope.enter_context(wide(True))
        scope.enter_context(self.jax.default_device(self.jax.local_devices(backend="cpu")[0]))
        return scope

    def take(self, view: Any) -> Any:
        """A copy, made at once: JAX may make its own later."""
        return self.jax.device_put(self.numpy.array(self.place(view)))  # compiles nothing

    def is_array(self, value: Any) -> bool:
        """jax.Array that has been computed; what jax.numpy makes of constants."""
        return isinstance(value, self.jax.Array) and not isinstance(value, self.jax.core.Tracer)

    def put(self, view: Any, array: Any) -> None:
        """Waits, and copies."""
        super().put(view, self.numpy.asarray(array))


class Cupy(Numpy):
    """Arrays without copies, on CUDA devices."""

    device = "cuda"

    def __init__(self) -> None:
        self.numpy = self.cupy = importlib.import_module("cupy")

    def scope(self, device_type: int, device_id: int, stream: int) -> AbstractContextManager:
        """The caller's device and stream."""
        if device_type == CPU:
            raise NotImplementedError("it computes on CUDA devices")
        scope = ExitStack()
        scope.enter_context(self.cupy.cuda.Device(device_id))
        scope.enter_context(self.cupy.cuda.ExternalStream(stream, device_id))
        return scope

    def place(self, view: Any) -> Any | None:
        """An array that shares the view's memory."""
        return self.cupy.from_dlpack(view)

    def is_array(self, value: Any) -> bool:
        """An array."""
        return isinstance(value, self.cupy.ndarray)


FRAMEWORKS: dict[str, type[Numpy]] = {"numpy": Numpy, "torch": Torch, "jax": Jax, "cupy": Cupy}
