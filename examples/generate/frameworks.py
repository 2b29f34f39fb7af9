# SPDX-License-Identifier: Apache-2.0
"""What differs between frameworks: how arrays are made and read, and who compiles or captures a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401, bfloat16 for NumPy
import numpy as np

from . import InputError


class NumPy:
    """Arrays of NumPy; also the ground of the others. Everything is in float32 here."""

    xp = np  # the module with tanh
    ahead = 0  # steps that are begun before the tokens of the one before are read
    few_sizes = False  # steps for powers of two of sequences, instead of for each number
    few_pieces = False  # of prompts: their sizes are powers of two

    def __init__(self, device: str, dtype: str):
        if (device, dtype) != ("cpu", "float32"):
            raise InputError(f"{type(self).__name__} runs on the CPU and in float32 here")
        self.dtype = dtype

    def array(self, array: np.ndarray) -> Any:
        return array

    def weight(self, parts: list[np.ndarray]) -> Any:
        """Below one another, as one array of the dtype that the model runs in."""
        return self.array(np.concatenate(parts, dtype=self.dtype, casting="unsafe"))

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.array(np.zeros(shape, self.dtype))

    def fetched(self, tokens: Any) -> Callable[[], list[int]]:
        """Gives them to the host, to which they are on their way."""
        return tokens.tolist

    def compiled(self, step: Callable, *example: Any) -> Callable:
        """step(weights, caches, arrays); with an example of these it has their sizes each time."""
        return step


class Torch(NumPy):
    """Eager on the CPU. On CUDA each step of decoding is a graph, captured before the first prompt."""

    def __init__(self, device, dtype):
        import torch

        self.xp, self.device, self.dtype, self.kind = torch, device, dtype, getattr(torch, dtype)
        if device == "cuda":
            if not torch.cuda.is_available():
                raise InputError("torch sees no CUDA device")
            self.ahead, self.few_sizes = 1, True
            self.pool = torch.cuda.graph_pool_handle()  # graphs run one at a time

    def array(self, array):
        made = self.xp.from_numpy(array)
        if self.device == "cpu":
            return made
        return made.pin_memory().to(self.device, non_blocking=True)  # the host goes on

    def weight(self, parts):
        made = np.concatenate(parts, dtype=self.dtype, casting="unsafe")
        made = made.view(f"i{made.itemsize}")  # torch does not know its bfloat16
        return self.xp.from_numpy(made).view(self.kind).to(self.device)

    def zeros(self, shape):
        return self.xp.zeros(shape, dtype=self.kind, device=self.device)

    def fetched(self, tokens):
        if self.device == "cpu":
            return tokens.tolist
        host = self.xp.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        copied = self.xp.cuda.Event()
        copied.record()
        return lambda: copied.synchronize() or host.tolist()

    def compiled(self, step, *example):
        """A graph reads its arrays where those of the example are, so that it can be replayed for other sequences."""
        if self.device == "cpu" or not example:
            return step
        cuda, state = self.xp.cuda, example[-1]
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):  # kernels and libraries are loaded by their first call
            step(*example)
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=self.pool):
            _, after = step(*example)
            for name in ("tokens", "lengths"):
                state[name].copy_(after[name])

        def replay(weights, caches, given):
            for name, array in given.items():
                if array is not state[name]:
                    state[name].copy_(array)
            graph.replay()
            return caches, dict(state)

        return replay


class Jax(NumPy):
    """Both kinds of steps are jitted, so they have few sizes; the caches are given away, and come back written."""

    few_sizes, few_pieces = True, True

    def __init__(self, device, dtype):
        import jax

        self.jax, self.xp, self.dtype, self.ahead = jax, jax.numpy, dtype, int(device != "cpu")
        try:
            self.place = jax.devices(device)[0]
        except RuntimeError as error:
            raise InputError(f"jax: {error}") from None

    def array(self, array):
        return self.jax.device_put(array, self.place)

    def compiled(self, step, *example):
        return self.jax.jit(step, donate_argnums=1)


class Paddle(NumPy):
    """Paddle's tensors, eagerly."""

    def __init__(self, device, dtype):
        import paddle

        super().__init__(device, dtype)
        paddle.set_device("cpu")
        self.xp, self.array = paddle, paddle.to_tensor


KINDS = {"numpy": NumPy, "torch": Torch, "jax": Jax, "paddle": Paddle}
