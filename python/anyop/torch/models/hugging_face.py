# SPDX-License-Identifier: Apache-2.0
"""Modules of Hugging Face models that anyop operators can stand in for: their structure, forward and check.

These modules have no base class in common, so each is known by what it holds and, before it is swapped, by its
results on random numbers: another formula behind the same names (Gemma's norm scales by 1 + weight) is found out,
and tried with the next kind that holds the same.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import anyop
from anyop._routes import unrecorded
from anyop.torch import attention, layers

# Float32 sums in another order, and the one or two roundings more or fewer of 16 bits.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


class Swapped:
    """Stands before a module's own class as a base class, and gives it another forward."""

    operator: str

    @staticmethod
    def looks_like(module: torch.nn.Module) -> bool:
        """Whether the module holds what the forward of this class uses, and nothing else."""
        raise NotImplementedError

    @staticmethod
    def trial(module: torch.nn.Module, random: Callable) -> Iterator[tuple]:
        """Stand-ins of the module with random weights, inputs, and the result that is expected of them."""
        raise NotImplementedError

    @classmethod
    def prepare(cls, module: torch.nn.Module, found: Any) -> None:
        """Tells the class that the module is given what else depends on the module's own."""

    def __reduce_ex__(self, protocol):
        """Copy and pickle by the two base classes: no module holds the class made of them by name."""
        function, arguments, *state = super().__reduce_ex__(protocol)
        if function is copyreg.__newobj__:
            function, arguments = _new, type(self).__bases__
        return function, arguments, *state


class RmsNorm(Swapped):
    """(weight + weight_offset) * x / sqrt(mean(x^2) + eps).

    Where weight and x differ in dtype, the result has the one that the module's own forward gives, seen once for each
    class; where that is another formula, or was not looked at (a module that was unpickled), it runs itself.
    """

    operator = "rms_norm"
    weight_offset = 0.0
    mixed: dict[tuple[torch.dtype, torch.dtype], torch.dtype] = {}  # noqa: RUF012  of x, weight: of the result

    @staticmethod
    def looks_like(module):
        parts = (*module._buffers, *module._modules)
        if "Norm" not in type(module).__name__ or set(module._parameters) != {"weight"} or parts:
            return False
        return module.weight is not None and module.weight.dim() == 1 and eps_of(module) is not None

    @classmethod
    def trial(cls, module, random):
        eps, D = float(eps_of(module)), module.weight.numel()
        scales = random(3, 1).new_tensor([[1.0], [math.sqrt(eps) or 1e-3], [100.0]])
        weight, x = random(D), random(3, D) * scales
        stand_in = shared_copy(module, _parameters={"weight": torch.nn.Parameter(weight)})
        yield stand_in, x, anyop.rms_norm(x, weight, eps, weight_offset=cls.weight_offset)

    @classmethod
    def prepare(cls, module, found):
        if "mixed" not in vars(found):
            found.mixed = cls._seen(module)

    @classmethod
    @unrecorded()
    @torch.no_grad()
    def _seen(cls, module):
        """The dtypes of x and weight for which the module's own forward is this norm, and of its result."""
        results, limits = {}, {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
        generator = torch.Generator().manual_seed(0)
        wide, D = partial(torch.randn, generator=generator, device="cpu"), module.weight.numel()
        eps, more = float(eps_of(module)), {"weight_offset": cls.weight_offset}
        for types in itertools.permutations(limits, 2):
            x, weight = wide(3, D).to(types[0]), wide(D).to(types[1])
            stand_in = shared_copy(module, _parameters={"weight": torch.nn.Parameter(weight)})
            try:
                with torch.autocast("cpu", enabled=False):
                    found = type(module).forward(stand_in, x)
            except Exception:  # somebody else's: it may refuse these dtypes
                continue
            expected = anyop.rms_norm(x.double(), weight.double(), eps, **more)
            limit = max(limits[t] for t in types)
            if found.dtype in limits and torch.allclose(found.double(), expected, limit, limit):
                results[types] = found.dtype
        return results

    def forward(self, x):
        weight, dtype = self.weight, x.dtype
        if weight.dtype is not dtype:
            dtype = self.mixed.get((x.dtype, weight.dtype))
            if dtype is None:
                return super().forward(x)
            weight = weight.float()  # of another one, the operator takes float32 alone
        rows = layers.rows_of(x)
        more = {"weight_offset": self.weight_offset} if self.weight_offset else {}
        if dtype is not x.dtype:
            more["dtype"] = dtype
        # Autocast may have made the result float32, which the module's own forward does not.
        return anyop.rms_norm(rows, weight, eps_of(self), **more).to(dtype)


class GemmaNorm(RmsNorm):
    """(1 + weight) * x / sqrt(mean(x^2) + eps)."""

    weight_offset = 1.0


class GatedParts(Swapped):
    """down_proj(act_fn(gate_proj(x)) * up_proj(x)): one product; joining the parts for silu_and_mul costs more."""

    operator = "mul"

    @staticmethod
    def looks_like(module):
        return _holds_only(module, {"gate_proj", "up_proj", "down_proj", "act_fn"})

    @staticmethod
    def trial(module, random):
        gate, up, down = random(6, 8), random(6, 8), random(8, 6)
        x = random(3, 8)
        linear = torch.nn.functional.linear
        act_fn = copy.copy(module.act_fn)
        parts = {"gate_proj": _linear(gate), "up_proj": _linear(up), "down_proj": _linear(down)}
        stand_in = shared_copy(module, _modules={**parts, "act_fn": act_fn})
        yield stand_in, x, linear(act_fn(linear(x, gate)) * linear(x, up), down)

    def forward(self, x):
        return self.down_proj(anyop.mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class GatedMatrix(Swapped):
    """down_proj(silu(g) * u) with g and u the halves of gate_up_proj(x). The activation module is not called."""

    operator = "silu_and_mul"

    @staticmethod
    def looks_like(module):
        return _holds_only(module, {"gate_up_proj", "down_proj", "activation_fn"})

    @staticmethod
    def trial(module, random):
        both, down, x = random(12, 8), random(8, 6), random(3, 8)
        linear, act_fn = torch.nn.functional.linear, copy.copy(module.activation_fn)
        parts = {"gate_up_proj": _linear(both), "down_proj": _linear(down)}
        stand_in = shared_copy(module, _modules={**parts, "activation_fn": act_fn})
        yield stand_in, x, linear(anyop.silu_and_mul(linear(x, both)), down)

    def forward(self, x):
        if hooks(self.activation_fn):  # they want to see a call
            return super().forward(x)
        both = self.gate_up_proj
        if is_plain(both) and not torch.is_autocast_enabled(x.device.type):
            return self.down_proj(anyop.linear_gated(x.contiguous(), both.weight))
        both = both(x)
        return self.down_proj(anyop.silu_and_mul(both.contiguous()))


class _Activation(Swapped):
    """A function of each element, known by the names that Hugging Face gives its classes."""

    names: frozenset[str]
    arguments: dict = {}  # noqa: RUF012

    @classmethod
    def looks_like(cls, module):
        return type(module).__name__ in cls.names and _holds_only(module, set())

    @classmethod
    def trial(cls, module, random):
        x = 4 * random(64)
        yield shared_copy(module), x, getattr(anyop, cls.operator)(x, **cls.arguments)


class Silu(_Activation):
    operator, names = "silu", frozenset({"SiLUActivation"})

    def forward(self, x):
        return anyop.silu(x)


class Gelu(_Activation):
    operator, names = "gelu", frozenset({"GELUActivation"})

    def forward(self, x):
        return anyop.gelu(x)


class GeluTanh(_Activation):
    operator, arguments = "gelu", {"approximate": "tanh"}
    names = frozenset({"GELUTanh", "PytorchGELUTanh", "NewGELUActivation", "FastGELUActivation"})

    def forward(self, x):
        return anyop.gelu(x, approximate="tanh")


class Conv1d(Swapped):
    """GPT-2's product: x weight + bias, with a row of weight for each input."""

    operator = "matmul"

    @staticmethod
    def looks_like(module):
        if set(module._parameters) != {"weight", "bias"} or not hasattr(module, "nx"):
            return False
        return not (module._buffers or module._modules) and module.weight.dim() == 2

    @staticmethod
    def trial(module, random):
        weight, bias, x = random(8, 6), random(6), random(2, 3, 8)
        parameters = {"weight": torch.nn.Parameter(weight), "bias": torch.nn.Parameter(bias)}
        changed = {"_parameters": parameters, "nx": 8, "nf": 6}
        yield shared_copy(module, **changed), x, anyop.matmul(x, weight) + bias

    def forward(self, x):
        out = anyop.matmul(x.reshape(-1, x.shape[-1]), self.weight)
        return (out + self.bias.to(out.dtype)).view(*x.shape[:-1], -1)


class ScaledEmbedding(Swapped):
    """Rows of weight times embed_scale (Gemma 3)."""

    operator = "embedding"

    @staticmethod
    def looks_like(module):
        if not isinstance(module, torch.nn.Embedding) or set(module._buffers) != {"embed_scale"}:
            return False
        return module.max_norm is None and not (module.scale_grad_by_freq or module.sparse)

    @staticmethod
    def trial(module, random):
        weight, ids = random(5, 6), torch.tensor([[3, 1, 4]], device="cpu")
        buffers = {"embed_scale": torch.tensor(1.75, device="cpu")}
        parameters = {"weight": torch.nn.Parameter(weight)}
        changed = {"_parameters": parameters, "_buffers": buffers, "padding_idx": 0}
        yield shared_copy(module, **changed), ids, 1.75 * anyop.embedding(ids, weight)

    def forward(self, input_ids):
        rows = layers.Embedding.forward(self, input_ids)
        return rows * self.embed_scale.to(self.weight.dtype)


KINDS = (RmsNorm, GemmaNorm, GatedParts, GatedMatrix, Silu, Gelu, GeluTanh, Conv1d, ScaledEmbedding)


def kinds_of(module: torch.nn.Module) -> list[type[Swapped]]:
    """The kinds whose structure the module has."""
    if isinstance(module, Swapped) or not _takes_one_input(module):
        return []
    return [kind for kind in KINDS if kind.looks_like(module)]


def agrees(module: torch.nn.Module, kind: type[Swapped]) -> bool:
    """Whether the module's own forward gives what kind's would, in training and not."""
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return all(_agrees(module, kind, dtype) for dtype in TOLERANCE)
    except Exception:  # forward is somebody else's and may raise anything
        return False


@functools.cache
def joined(kind: Any, original: Any) -> Any:
    """The class of a swapped module: a subclass of its own class, of the same name, as PEFT saves it with adapters."""
    return type(original)(original.__name__, (kind, original), {"__module__": original.__module__})


def original(module: torch.nn.Module) -> Any:
    """The class that a module had before it was swapped."""
    return type(module).__bases__[1] if isinstance(module, Swapped) else type(module)


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a call of the module is the product with its weight, and nothing else."""
    known = type(module) in (torch.nn.Linear, layers.Linear)
    return known and module.bias is None and not hooks(module)


def _new(kind: Any, original: Any) -> torch.nn.Module:
    found = joined(kind, original)
    attention.register_for_copies()
    return found.__new__(found)


@unrecorded()
def _agrees(module, kind, dtype) -> bool:
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")

    for stand_in, x, expected in kind.trial(module, random):
        for training in (False, True):
            stand_in.training = training
            found = type(module).forward(stand_in, x)
            same = found.dtype is dtype and found.shape == expected.shape
            tolerance = TOLERANCE[dtype]
            if not same or not torch.allclose(found, expected, rtol=tolerance, atol=tolerance):
                return False
    return True


def shared_copy(module: torch.nn.Module, **changed) -> torch.nn.Module:
    """A copy that shares all but what is changed; the module itself is not touched."""
    stand_in = copy.copy(module)
    stand_in.__dict__.update(changed)
    return stand_in


def _linear(weight: torch.Tensor) -> torch.nn.Linear:
    """A layer on the meta device draws no random numbers of the user's."""
    layer = torch.nn.Linear(*weight.shape[::-1], bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight)
    return layer


def eps_of(module: torch.nn.Module) -> float | None:
    """What a norm adds to the mean square, by the two names that it has in transformers."""
    found = getattr(module, "variance_epsilon", None)
    return getattr(module, "eps", None) if found is None else found


def _holds_only(module: torch.nn.Module, children: set[str]) -> bool:
    return set(module._modules) == children and not module._parameters and not module._buffers


def hooks(module: torch.nn.Module) -> bool:
    """Whether somebody wants to see the module's calls."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in names)


def _takes_one_input(module: torch.nn.Module) -> bool:
    try:
        parameters = inspect.signature(type(module).forward).parameters.values()
    except (TypeError, ValueError):
        return False
    usual = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [parameter.kind for parameter in parameters] == [usual, usual]
