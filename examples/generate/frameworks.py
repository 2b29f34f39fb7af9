# SPDX-License-Identifier: Apache-2.0
"""What differs between frameworks: how arrays are made and read, and who compiles or captures a step."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from . import InputError
from .checkpoint import Tensor

PACKAGES = {"numpy": "numpy", "torch": "torch", "jax": "jax", "paddle": "paddlepaddle"}


class NumPy:
    """Arrays of NumPy; also the ground of the others. Everything is in float32 here."""

    name, xp_name = "numpy", "numpy"
    ahead = 0  # steps that are begun before the tokens of the one before are read
    few_sizes = False  # steps for powers of two of sequences, instead of for each number
    few_pieces = False  # of prompts: their sizes are powers of two

    def __init__(self, device: str = "cpu", dtype: str = "float32"):
        try:
            self.xp = importlib.import_module(self.xp_name)
        except ImportError as error:
            raise InputError(f"{self.name}: {error}; pip install {PACKAGES[self.name]}") from None
        self.device, self.dtype = device, dtype
        self.prepare()

    def prepare(self) -> None:
        if (self.device, self.dtype) != ("cpu", "float32"):
            raise InputError(f"{self.name} runs on the CPU and in float32 here")

    def array(self, array: np.ndarray) -> Any:
        return array

    def weight(self, tensors: list[Tensor]) -> Any:
        """The tensors below one another as one array of the dtype that the model runs in."""
        return self.array(np.concatenate([widened(tensor) for tensor in tensors]))

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.xp.zeros(shape, dtype=self.dtype)

    def read(self, tokens: Any) -> list[int]:
        return tokens.tolist()

    def advancing(self, advance: Callable) -> Callable:
        """advance(weights, caches, step), for any sizes."""
        return advance

    def decoding(self, decode: Callable, weights: Any) -> Decoding:
        """decode(weights, caches, state) of one number of sequences, step by step."""
        return Decoding(self, decode, weights)


class Decoding:
    def __init__(self, framework: NumPy, decode: Callable, weights: Any):
        self.framework, self.decode, self.weights = framework, decode, weights
        self.state: dict[str, Any] = {}

    def load(self, **state: np.ndarray) -> None:
        """The state of the next step, or what of it is another one."""
        self.state |= {name: self.framework.array(array) for name, array in state.items()}

    def __call__(self, caches: list) -> tuple[list, Any]:
        """The caches, and the tokens for read()."""
        caches, self.state = self.decode(self.weights, caches, self.state)
        return caches, self.state["tokens"]


class Torch(NumPy):
    name, xp_name = "torch", "torch"

    def prepare(self):
        if self.device == "cuda" and not self.xp.cuda.is_available():
            raise InputError("torch sees no CUDA device")
        if self.device == "cuda":
            self.ahead, self.few_sizes = 1, True
            self.pool = self.xp.cuda.graph_pool_handle()  # graphs run one at a time
        self.kind = getattr(self.xp, self.dtype)

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

    def decoding(self, decode, weights):
        kind = Graph if self.device == "cuda" else Decoding
        return kind(self, decode, weights)


class Graph(Decoding):
    """A CUDA graph of one step. Its state stays where it is, so that it can be replayed for other sequences."""

    def load(self, **state):
        made = {name: self.framework.array(array) for name, array in state.items()}
        for name in made.keys() & self.state.keys():
            self.state[name].copy_(made[name])
        self.state = made | self.state

    def capture(self, caches: list) -> None:
        """Runs once, as kernels and libraries are loaded by their first call, and is then recorded."""
        torch, self.turn = self.framework.xp, 0
        size = len(self.state["tokens"])
        # Two places, as the tokens of one step are read while the next runs.
        self.host = [torch.zeros(size, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.decode(self.weights, caches, self.state)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.framework.pool):
            _, state = self.decode(self.weights, caches, self.state)
            for name in ("tokens", "lengths"):
                self.state[name].copy_(state[name])

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

    name, xp_name = "jax", "jax.numpy"
    few_sizes, few_pieces = True, True

    def prepare(self):
        self.jax = importlib.import_module("jax")
        # topk gives places as int64, which JAX has only so.
        self.jax.config.update("jax_enable_x64", True)
        try:
            self.place = self.jax.devices(self.device)[0]
        except RuntimeError as error:
            raise InputError(f"jax: {error}") from None
        self.ahead = int(self.device != "cpu")

    def array(self, array):
        return self.jax.device_put(array, self.place)

    def weight(self, tensors):
        return super().weight(tensors).astype(self.dtype)

    def zeros(self, shape):
        return self.array(self.xp.zeros(shape, self.dtype))

    def advancing(self, advance):
        return self.jax.jit(advance, donate_argnums=1)

    def decoding(self, decode, weights):
        return super().decoding(self.jax.jit(decode, donate_argnums=1), weights)


class Paddle(NumPy):
    """Paddle's tensors, eagerly."""

    name, xp_name = "paddle", "paddle"

    def prepare(self):
        super().prepare()
        self.xp.set_device("cpu")

    def array(self, array):
        return self.xp.to_tensor(array)


def widened(tensor: Tensor) -> np.ndarray:
    """As float32. The upper half of a float32 is a bfloat16."""
    if tensor.dtype == "BF16":
        return (tensor.values.astype(np.uint32) << 16).view(np.float32)
    return tensor.values.astype(np.float32)


KINDS = {kind.name: kind for kind in (NumPy, Torch, Jax, Paddle)}
