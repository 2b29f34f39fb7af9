# SPDX-License-Identifier: Apache-2.0
"""Values of each framework from NumPy arrays, and back."""

from __future__ import annotations

import contextlib

import numpy as np
import oracle
import torch


class Numpy:
    """Arrays of the caller's own memory."""

    name = "NumPy"
    writable = True  # in-place and out=
    shares = True  # get() gives the very memory

    def put(self, array: np.ndarray):
        return array.copy()

    def get(self, value):
        return value

    def owns(self, value) -> bool:
        return isinstance(value, np.ndarray | np.generic)

    def around(self):
        return contextlib.nullcontext()


class Torch(Numpy):
    """torch's own tensors, which anyop must not stand in the way of."""

    name = "torch"

    def put(self, array: np.ndarray):
        return oracle.to_torch(array)

    def get(self, value):
        return oracle.to_numpy(value)

    def owns(self, value) -> bool:
        return isinstance(value, torch.Tensor)

    def around(self):
        return torch.no_grad()


class Jax(Numpy):
    """Arrays that nobody may write; 64-bit types are on."""

    name = "JAX"
    writable = False
    shares = False

    def put(self, array: np.ndarray):
        import jax

        return jax.device_put(array.copy())  # compiles nothing

    def get(self, value):
        return np.asarray(value)

    def owns(self, value) -> bool:
        import jax

        return isinstance(value, jax.Array)

    def around(self):
        import jax

        if hasattr(jax, "enable_x64"):
            return jax.enable_x64(True)
        return jax.experimental.enable_x64()


class Paddle(Numpy):
    """Eager tensors; what they hold is copied to be seen."""

    name = "Paddle"
    shares = False

    def put(self, array: np.ndarray):
        import paddle

        if array.dtype.name == "bfloat16":
            return paddle.to_tensor(array.astype(np.float32), "bfloat16", paddle.CPUPlace())
        if array.dtype.kind == "u" and array.itemsize > 1:
            raise oracle.Refused(f"Paddle has no {array.dtype}")
        return paddle.to_tensor(array.copy(), place=paddle.CPUPlace())

    def get(self, value):
        array = value.numpy()
        if str(value.dtype) == "paddle.bfloat16":  # as uint16
            import ml_dtypes

            return array.view(ml_dtypes.bfloat16)
        return array

    def owns(self, value) -> bool:
        import paddle

        return isinstance(value, paddle.Tensor)


ALL = {framework.name: framework for framework in (Numpy(), Jax(), Torch(), Paddle())}
