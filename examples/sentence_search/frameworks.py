# SPDX-License-Identifier: Apache-2.0
"""What differs between frameworks for one model: arrays in and out, the order of axes, compiling."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable

import numpy as np

from . import InputError

# What to install for each framework besides NumPy.
PACKAGES = {"torch": "torch", "jax": "jax", "paddle": "paddlepaddle"}
TOKENS_STEP = (
    32  # lengths that XLA compiles for: a graph for every one would cost more than padding
)


class Framework:
    """NumPy, and the parts that other frameworks share with it."""

    name = "numpy"
    compiler = ""  # what runs the model as a whole; "": each operator by itself

    def __init__(self):
        self.module = working(self.name)
        self.version = self.module.__version__

    def tensor(self, array: np.ndarray):
        """The array as the framework's own kind."""
        return array

    def array(self, tensor) -> np.ndarray:
        """The tensor's values, which may be a view of its memory."""
        return np.asarray(tensor)

    def empty(self, shape, dtype=np.float32):
        """Memory for results of NumPy's model."""
        return np.empty(shape, dtype)

    def out(self, *kinds) -> dict:
        """Where results of these shapes and dtypes go, as an operator's argument; {}: it makes them."""
        return {}

    def permute(self, tensor, *axes: int):
        return tensor.transpose(*axes)

    def padded(
        self, ids: np.ndarray, mask: np.ndarray, limit: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The batch in one of few shapes, where the framework compiles for each; limit: tokens."""
        return ids, mask

    def prepared(self, forward: Callable, weights) -> Callable:
        """The function forward(weights, *tensors) of the tensors alone, compiled or as it is."""
        return lambda *tensors: forward(weights, *tensors)


class Torch(Framework):
    name = "torch"

    def __init__(self, compiled: bool = False):
        super().__init__()
        self.compiler = "inductor" * compiled

    def tensor(self, array):
        return self.module.from_numpy(array)

    def permute(self, tensor, *axes):
        return tensor.permute(*axes)

    def padded(self, ids, mask, limit):
        if len(ids) == 1 and self.compiler:  # torch.compile makes a size of 1 a graph of its own
            ids, mask = ids.repeat(2, 0), mask.repeat(2, 0)
        return ids, mask

    def prepared(self, forward, weights):
        run = super().prepared(forward, weights)
        if not self.compiler:
            return run
        compiled = self.module.compile(run, fullgraph=True, dynamic=True)

        def checked(*tensors):
            try:
                return compiled(*tensors)
            except self.module._dynamo.exc.BackendCompilerFailed as error:  # such as: no compiler
                cause = str(error.inner_exception).strip().splitlines()[0]
                raise InputError(f"torch.compile failed: {cause}") from None

        return checked


class Jax(Framework):
    """The model is one jitted function; XLA compiles it for each shape, so there are few shapes."""

    name = "jax"
    compiler = "xla"

    def __init__(self):
        super().__init__()
        # topk gives positions as int64, which JAX has only so.
        self.module.config.update("jax_enable_x64", True)

    def tensor(self, array):
        return self.module.device_put(array, self.module.devices("cpu")[0])

    def padded(self, ids, mask, limit):
        rows = 1 << (len(ids) - 1).bit_length()
        columns = min(-(-ids.shape[1] // TOKENS_STEP) * TOKENS_STEP, limit)
        ids, mask = (np.pad(x, ((0, 0), (0, columns - x.shape[1]))) for x in (ids, mask))
        # Rows that are added repeat the last one: a text of no tokens would have no mean.
        return tuple(np.pad(x, ((0, rows - len(x)), (0, 0)), "edge") for x in (ids, mask))

    def prepared(self, forward, weights):
        jitted = self.module.jit(forward)  # weights as an argument: else they are part of the graph
        return lambda *tensors: jitted(weights, *tensors)


class Paddle(Framework):
    name = "paddle"

    def __init__(self):
        super().__init__()
        self.module.set_device("cpu")

    def tensor(self, array):
        return self.module.to_tensor(array)

    def array(self, tensor):
        return tensor.numpy()

    def permute(self, tensor, *axes):
        return tensor.transpose(list(axes))


KINDS = {kind.name: kind for kind in (Framework, Torch, Jax, Paddle)}


def working(name: str):
    """The framework's module with anyop's part for it; InputError says what to install."""
    try:
        with warnings.catch_warnings():  # what a framework misses is no concern of this program's
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise InputError(f"{name} cannot be imported: {error}") from None
        raise InputError(f"{name} is not installed: {install(name)}") from None
    except (ImportError, OSError) as error:
        raise InputError(f"{name} cannot be imported: {str(error).splitlines()[0]}") from None
    try:
        if name != "numpy":
            importlib.import_module(f"anyop.{name}")
    except ImportError as error:
        raise InputError(str(error).splitlines()[0]) from None
    return module


def install(name: str) -> str:
    """The command that installs the framework."""
    return f"{sys.executable} -m pip install {PACKAGES[name]}"
