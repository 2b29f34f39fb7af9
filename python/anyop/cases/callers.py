# SPDX-License-Identifier: Apache-2.0
"""The frameworks that call operators, in one form: tensors from arrays and back, gradients, graphs.

for name in CALLERS:
if reason := missing(name):
print(reason)
continue
caller = CALLERS[name]()
with caller.scope():
found = anyop.rms_norm(caller.tensor(x), caller.tensor(weight))
assert caller.is_tensor(found) and (caller.array(found) == expected).all()
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from anyop._paths import is_installed


def to_torch(value: Any) -> Any:
    """A torch tensor of the same values; lists element by element."""
    import torch

    if isinstance(value, list):
        return [to_torch(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    name = value.dtype.name
    if value.dtype.isbuiltin != 1:  # of ml_dtypes
        bits = np.ascontiguousarray(value).view(f"u{value.itemsize}")
        return torch.from_numpy(bits.reshape(value.shape)).clone().view(getattr(torch, name))
    return torch.from_numpy(np.array(value)).clone()  # aligned as torch aligns


class Caller:
    """One framework. Tensors of it hold the values of NumPy arrays; ml_dtypes' arrays stand for bfloat16."""

    name: str
    module: str  # what is imported
    backend = "cpu"  # whose kernels run
    has_gradients = True
    writes = True  # whether out= takes its tensors
    has_views = True

    def __init__(self) -> None:
        self.framework = importlib.import_module(self.module)

    @property
    def version(self) -> str:
        """As the framework says it."""
        return self.framework.__version__

    def scope(self) -> AbstractContextManager:
        """Around tensors and calls in every dtype."""
        return nullcontext()

    def has_dtype(self, name: str) -> bool:
        """Whether it has tensors of this dtype."""
        return hasattr(self.framework, name)

    def tensor(self, array: np.ndarray) -> Any:
        """A new tensor of the array's values, row-major."""
        raise NotImplementedError

    def arguments(self, values: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call: arrays, also in lists, become tensors; all else stays."""
        return {name: self._argument(value) for name, value in values.items()}

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        return self.tensor(value) if isinstance(value, np.ndarray) else value

    def every_second_row(self, array: np.ndarray) -> Any:
        """The same values as a view of a tensor with twice as many rows."""
        return self.tensor(np.repeat(array, 2, 0))[::2]

    def array(self, tensor: Any) -> np.ndarray:
        """The values, in an array of the same dtype."""
        raise NotImplementedError

    def is_tensor(self, value: Any) -> bool:
        """Whether a result is one of the framework's own."""
        raise NotImplementedError

    def gradients(self, function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
        """Of function(*tensors), which gives one number, by each tensor."""
        raise NotImplementedError

    def graph(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """The function as a graph of the framework; None where it has none."""
        return None

    def frozen(self, array: np.ndarray) -> Any:
        """A tensor that the framework does not let out= write; None where it has none."""
        return None


class NumpyCaller(Caller):
    """Gradients are the backward operators', called by hand."""

    name = module = "numpy"
    has_gradients = False

    def has_dtype(self, name: str) -> bool:
        """All, with ml_dtypes."""
        return True

    def tensor(self, array: np.ndarray) -> np.ndarray:
        """A copy."""
        return np.array(array)

    def array(self, tensor: np.ndarray) -> np.ndarray:
        """The array itself."""
        return tensor

    def is_tensor(self, value: Any) -> bool:
        """numpy.ndarray."""
        return type(value) is np.ndarray

    def frozen(self, array: np.ndarray) -> np.ndarray:
        """Read-only."""
        made = np.array(array)
        made.flags.writeable = False
        return made


class TorchCaller(Caller):
    """On the CPU."""

    name = module = "torch"

    def __init__(self) -> None:
        super().__init__()
        importlib.import_module("anyop.torch")  # graphs and gradients

    def tensor(self, array: np.ndarray) -> Any:
        """A copy."""
        return to_torch(array)

    def array(self, tensor: Any) -> np.ndarray:
        """A copy; bfloat16 through its bits."""
        tensor = tensor.detach().contiguous()
        name = str(tensor.dtype).removeprefix("torch.")
        if hasattr(np, name):
            return tensor.numpy()
        import ml_dtypes

        bits = {1: self.framework.uint8, 2: self.framework.uint16}[tensor.element_size()]
        return tensor.view(bits).numpy().view(getattr(ml_dtypes, name))

    def is_tensor(self, value: Any) -> bool:
        """torch.Tensor, no subclass."""
        return type(value) is self.framework.Tensor

    def gradients(self, function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
        """By torch.autograd."""
        leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        return list(self.framework.autograd.grad(function(*leaves), leaves))

    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """torch.compile without breaks; without a C++ compiler's help, which takes long."""
        self.framework._dynamo.reset()  # sizes of another function are not this one's
        return self.framework.compile(function, fullgraph=True, backend="aot_eager")

    def frozen(self, array: np.ndarray) -> Any:
        """One whose gradient is recorded."""
        return self.tensor(array).requires_grad_()


class TorchCudaCaller(TorchCaller):
    """On the current CUDA device."""

    backend = "cuda"

    def tensor(self, array: np.ndarray) -> Any:
        """A copy on the device."""
        return super().tensor(array).cuda()

    def array(self, tensor: Any) -> np.ndarray:
        """A copy; waits for the current stream."""
        return super().array(tensor.cpu())


class JaxCaller(Caller):
    """float64 needs the scope."""

    name = module = "jax"
    writes = has_views = False

    def scope(self) -> AbstractContextManager:
        """With 64-bit dtypes."""
        if hasattr(self.framework, "enable_x64"):
            return self.framework.enable_x64(True)
        from jax import experimental  # before 0.8

        return experimental.enable_x64(True)

    def has_dtype(self, name: str) -> bool:
        """Those of jax.numpy."""
        return hasattr(self.framework.numpy, name)

    def tensor(self, array: np.ndarray) -> Any:
        """A copy. jax.numpy.array would compile a program for every shape."""
        return self.framework.device_put(np.array(array))

    def array(self, tensor: Any) -> np.ndarray:
        """A copy."""
        return np.asarray(tensor)

    def is_tensor(self, value: Any) -> bool:
        """jax.Array."""
        return isinstance(value, self.framework.Array)

    def gradients(self, function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
        """By jax.grad."""
        return list(self.framework.grad(function, tuple(range(len(tensors))))(*tensors))

    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """jax.jit."""
        return self.framework.jit(function)

    def frozen(self, array: np.ndarray) -> Any:
        """Any: all are immutable."""
        return self.tensor(array)


class PaddleCaller(Caller):
    """On the CPU."""

    name = module = "paddle"

    def tensor(self, array: np.ndarray) -> Any:
        """A copy; bfloat16 through float32, which holds all its values, float8 as bytes."""
        if array.dtype.name == "bfloat16":
            return self.framework.to_tensor(array.astype(np.float32), place="cpu").cast("bfloat16")
        if array.dtype.name.startswith("float8"):
            bits = self.framework.to_tensor(np.array(array).view(np.uint8), place="cpu")
            return bits.view(array.dtype.name)
        return self.framework.to_tensor(np.array(array), place="cpu")

    def array(self, tensor: Any) -> np.ndarray:
        """A copy."""
        name = str(tensor.dtype).removeprefix("paddle.")
        if hasattr(np, name):
            return tensor.detach().numpy()
        import ml_dtypes

        if name == "bfloat16":
            return tensor.detach().cast("float32").numpy().astype(ml_dtypes.bfloat16)
        return tensor.detach().numpy().view(getattr(ml_dtypes, name))  # float8: int8 for Paddle

    def is_tensor(self, value: Any) -> bool:
        """paddle.Tensor, no subclass."""
        return type(value) is self.framework.Tensor

    def gradients(self, function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
        """By paddle.grad."""
        leaves = [tensor.detach().clone() for tensor in tensors]
        for leaf in leaves:
            leaf.stop_gradient = False
        return self.framework.grad([function(*leaves)], leaves)

    def graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """paddle.jit.to_static of the whole function, which must say how many arguments it has."""

        def call(*args: Any) -> Any:
            def whole(*tensors: Any) -> Any:
                return function(*tensors)

            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            names = [inspect.Parameter(f"x{at}", kind) for at in range(len(args))]
            whole.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
            return self.framework.jit.to_static(whole, full_graph=True)(*args)

        return call

    def frozen(self, array: np.ndarray) -> Any:
        """One whose gradient is recorded."""
        made = self.tensor(array)
        made.stop_gradient = False
        return made


class CupyCaller(Caller):
    """On the current CUDA device."""

    name = module = "cupy"
    backend = "cuda"
    has_gradients = False

    def tensor(self, array: np.ndarray) -> Any:
        """A copy."""
        return self.framework.array(array)

    def array(self, tensor: Any) -> np.ndarray:
        """A copy; waits for the current stream."""
        return self.framework.asnumpy(tensor)

    def is_tensor(self, value: Any) -> bool:
        """cupy.ndarray."""
        return type(value) is self.framework.ndarray


CALLERS: dict[str, type[Caller]] = {
    caller.name: caller
    for caller in (NumpyCaller, TorchCaller, JaxCaller, PaddleCaller, CupyCaller)
}


def missing(name: str) -> str | None:
    """Why a framework cannot be called here; None when it can."""
    if not is_installed(CALLERS[name].module):
        return f"{name} is not installed"
    if name == "cupy" and not importlib.import_module("cupy").is_available():
        return "CuPy finds no CUDA device"
    return None
