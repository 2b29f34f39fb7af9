# SPDX-License-Identifier: Apache-2.0
"""What differs between frameworks: how arrays are made and read, and who compiles or captures a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import InputError
from .checkpoint import Tensor


class NumPy:
    """Arrays of NumPy; also the ground of the others. Everything is in float32 here."""

    name, xp = "numpy", np  # xp: the module with tanh
    ahead = 0  # steps that are begun before the tokens of the one before are read
    few_sizes = False  # steps for powers of two of sequences, instead of for each number
    few_pieces = False  # of prompts: their sizes are powers of two

    def __init__(self, device: str = "cpu", dtype: str = "float32"):
        if (device, dtype) != ("cpu", "float32"):
            raise InputError(f"{self.name} runs on the CPU and in float32 here")
        self.dtype = dtype

    def array(self, array: np.ndarray) -> Any:
        return array

    def weight(self, tensors: list[Tensor]) -> Any:
        """The tensors below one another as one array of the dtype that the model runs in."""
        return self.array(np.concatenate([widened(tensor) for tensor in tensors]))

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.array(np.zeros(shape, np.float32))

    def read(self, tokens: Any) -> list[int]:
        return tokens.tolist()

    def compiled(self, step: Callable) -> Callable:
        """step(weights, caches, arrays)"""
        return step

    def decoding(self, decode: Callable, weights: dict, caches: list, state: dict) -> Decoding:
        """Steps of one number of sequences, by decode(weights, caches, state)."""
        return Decoding(self, self.compiled(decode), weights, state)


class Decoding:
    def __init__(self, framework: NumPy, decode: Callable, weights: dict, state: dict):
        self.framework, self.decode, self.weights = framework, decode, weights
        self.state: dict[str, Any] = {}
        self.load(**state)

    def load(self, **state: np.ndarray) -> None:
        """The state of the next step, or what of it is another one."""
        self.state |= {name: self.framework.array(array) for name, array in state.items()}

    def __call__(self, caches: list) -> tuple[list, Any]:
        """The caches, and the tokens for read()."""
        caches, self.state = self.decode(self.weights, caches, self.state)
        return caches, self.state["tokens"]


class Torch(NumPy):
    """Eager on the CPU. On CUDA each step of decoding is a graph, captured before the first prompt."""

    name = "torch"

    def __init__(self, device="cpu", dtype="float32"):
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("torch sees no CUDA device")
        self.xp, self.device, self.dtype, self.kind = torch, device, dtype, getattr(torch, dtype)
        if device == "cuda":
            self.ahead, self.few_sizes = 1, True
            self.pool = torch.cuda.graph_pool_handle()  # graphs run one at a time

    def array(self, array):
        made = self.xp.from_numpy(array)
        if self.device == "cpu":
            return made
        return made.pin_memory().to(self.device, non_blocking=True)  # the host goes on

    def weight(self, tensors):
        return self.xp.cat([self.mapped(tensor).to(self.device, self.kind) for tensor in tensors])

    def mapped(self, tensor: Tensor) -> Any:
        if tensor.dtype == "BF16":
            return self.xp.from_numpy(tensor.values.view(np.int16)).view(self.xp.bfloat16)
        return self.xp.from_numpy(tensor.values)

    def zeros(self, shape):
        return self.xp.zeros(shape, dtype=self.kind, device=self.device)

    def read(self, tokens):
        if isinstance(tokens, tuple):  # of a graph
            tokens, copied = tokens
            copied.synchronize()
        return tokens.tolist()

    def decoding(self, decode, weights, caches, state):
        if self.device == "cpu":
            return super().decoding(decode, weights, caches, state)
        return Graph(self, decode, weights, caches, state)


class Graph(Decoding):
    """A CUDA graph of one step. Its state stays where it is, so that it can be replayed for other sequences."""

    def __init__(
        self, framework: Torch, decode: Callable, weights: dict, caches: list, state: dict
    ):
        super().__init__(framework, decode, weights, state)
        torch, self.turn = framework.xp, 0
        # Two places, as the tokens of one step are read while the next runs.
        size = len(state["tokens"])
        self.host = [torch.zeros(size, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels and libraries are loaded by their first call
            decode(weights, caches, self.state)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=framework.pool):
            _, state = decode(weights, caches, self.state)
            for name in ("tokens", "lengths"):
                self.state[name].copy_(state[name])

    def load(self, **state):
        made = {name: self.framework.array(array) for name, array in state.items()}
        for name in made.keys() & self.state.keys():
            self.state[name].copy_(made[name])
        self.state = made | self.state

    def __call__(self, caches):
        self.graph.replay()
        self.turn = 1 - self.turn
        tokens = self.host[self.turn]
        tokens.copy_(self.state["tokens"], non_blocking=True)
        copied = self.framework.xp.cuda.Event()
        copied.record()
        return caches, (tokens, copied)


class Jax(NumPy):
    """Both kinds of steps are jitted, so they have few sizes; the caches are given away, and come back written."""

    name = "jax"
    few_sizes, few_pieces = True, True

    def __init__(self, device="cpu", dtype="float32"):
        import jax

        self.jax, self.xp, self.dtype = jax, jax.numpy, dtype
        try:
            self.place = jax.devices(device)[0]
        except RuntimeError as error:
            raise InputError(f"jax: {error}") from None
        self.ahead = int(device != "cpu")

    def array(self, array):
        return self.jax.device_put(array, self.place)

    def weight(self, tensors):
        return super().weight(tensors).astype(self.dtype)

    def zeros(self, shape):
        return self.array(self.xp.zeros(shape, self.dtype))

    def compiled(self, step):
        return self.jax.jit(step, donate_argnums=1)


class Paddle(NumPy):
    """Paddle's tensors, eagerly."""

    name = "paddle"

    def __init__(self, device="cpu", dtype="float32"):
        import paddle

        super().__init__(device, dtype)
        paddle.set_device("cpu")
        self.xp = paddle

    def array(self, array):
        return self.xp.to_tensor(array)


def widened(tensor: Tensor) -> np.ndarray:
    """As float32. The upper half of a float32 is a bfloat16."""
    if tensor.dtype == "BF16":
        return (tensor.values.astype(np.uint32) << 16).view(np.float32)
    return tensor.values.astype(np.float32)


KINDS = {kind.name: kind for kind in (NumPy, Torch, Jax, Paddle)}
