# SPDX-License-Identifier: Apache-2.0
"""Products of one input as one product: the weights of several Linears lie one behind the other in one memory.

The parameters stay the same objects, as views of that memory, so state dicts, optimizers and whoever else holds them
see what they saw before. Calls that record a gradient, run under autocast or are compiled run the Linears one by one.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch import layers
from anyop.torch.models import gains, hugging_face
from anyop.torch.models.hugging_face import GatedParts, Swapped

GATED = ("gate_proj", "up_proj")
PLAIN = (torch.nn.Linear, layers.Linear, layers.FewRowsLinear)
HEADS = ("q_proj", "k_proj", "v_proj")


class Joined:
    """Linears of one input, and the memory in which their parameters lie. Copies and pickles make their own."""

    def __init__(
        self, parts: list[torch.nn.Linear], activation: str | None = None, act_fn: str = ""
    ) -> None:
        self.parts = parts
        # Of a gated feed-forward part, and the class that it stands for.
        self.activation, self.act_fn = activation, act_fn
        self.most: int | None = None  # rows of a call; None: any number
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self._kept = threading.local()  # results that the other parts will ask for

    @classmethod
    def of(cls, module: torch.nn.Module, names: tuple[str, ...]) -> Joined:
        """Of these children of the module, joined."""
        parts: Any = [module._modules[name] for name in names]
        found = cls(parts)
        if names == GATED:
            act_fn: Any = module.act_fn
            found = cls(parts, activation_of(act_fn), _name(act_fn))
        found.join()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # The parts hold this object: they come as its state, after it.
        state = {"parts": self.parts, "most": self.most}
        return Joined, ([], self.activation, self.act_fn), state

    @torch.no_grad()
    def join(self) -> None:
        """Move the parameters into one memory."""
        self.weight = _joined([part.weight for part in self.parts])
        self.bias = None if self.parts[0].bias is None else _joined([p.bias for p in self.parts])

    @torch.no_grad()
    def part(self) -> None:
        """Give each parameter a memory of its own again."""
        for layer in self.parts:
            for parameter in layer._parameters.values():
                if parameter is not None:
                    parameter.data = parameter.detach().clone()
        self.weight = self.bias = None

    def takes(self, x: Tensor) -> bool:
        """Whether a call with x is one product; joins anew what was moved, copied or loaded in between."""
        if torch.compiler.is_compiling() or type(x) is not Tensor:
            return False
        if torch.is_autocast_enabled(x.device.type):
            return False
        if self.most is not None and x.numel() > self.most * x.shape[-1]:
            return False
        weights = [part.weight for part in self.parts]
        if torch.is_grad_enabled() and (x.requires_grad or any(w.requires_grad for w in weights)):
            return False
        if not (_lies_in(self.weight, weights) and self._has_biases()):
            if not may_join(self.parts) or _is_captured(x):
                return False
            self.join()
        return x.dtype is self.weight.dtype and x.device == self.weight.device

    def _has_biases(self) -> bool:
        biases = [part.bias for part in self.parts]
        return biases[0] is None if self.bias is None else _lies_in(self.bias, biases)

    def first(self, x: Tensor) -> Tensor:
        """The first part's result; the others' are kept for their calls with the same x."""
        both = anyop.linear(x.contiguous(), self.weight, self.bias)
        found, *others = both.split([part.weight.shape[0] for part in self.parts], -1)
        self._kept.results = x, _version(x), dict(zip(self.parts[1:], others, strict=True))
        return found

    def take(self, part: torch.nn.Module, x: Tensor) -> Tensor | None:
        """What was kept for the part, if it was for this x as it is."""
        if torch.compiler.is_compiling():  # nothing is kept then
            return None
        of, version, results = getattr(self._kept, "results", None) or (None, None, {})
        found = results.pop(part, None)
        if found is None or not results or of is not x:
            self._kept.results = None
        return found if of is x and version == _version(x) else None


class FirstPart(Swapped):
    """The Linear that its attention calls first: it multiplies for all."""

    operator = "linear"

    def forward(self, input):
        joined = self.__dict__.get("_joined")
        if joined is None or not joined.takes(input):
            return super().forward(input)
        return joined.first(input)


class OtherPart(Swapped):
    """A Linear whose result was made with the first one's."""

    operator = "linear"

    def forward(self, input):
        joined = self.__dict__.get("_joined")
        found = None if joined is None else joined.take(self, input)
        return super().forward(input) if found is None else found


class GatedJoined(GatedParts):
    """down_proj(act_fn(gate_proj(x)) * up_proj(x)) with the first two as one gated product."""

    operator = "linear_gated"

    def forward(self, x):
        joined = self.__dict__.get("_joined")
        inner = [self.gate_proj, self.up_proj, self.act_fn]
        if joined is None or any(map(hugging_face.hooks, inner)) or not joined.takes(x):
            return super().forward(x)
        if any(map(operator.is_not, inner, joined.parts)):  # LoRA has put its own around one
            return super().forward(x)
        if joined.bias is not None or joined.act_fn != _name(self.act_fn):
            return super().forward(x)
        out = anyop.linear_gated(x.contiguous(), joined.weight, joined.activation)
        return self.down_proj(out)


ACTIVATIONS: dict[type, str] = {  # what linear_gated calls them
    hugging_face.Silu: "silu",
    hugging_face.Gelu: "gelu",
    hugging_face.GeluTanh: "gelu_tanh",
    torch.nn.SiLU: "silu",
    layers.SiLU: "silu",
    torch.nn.ReLU: "relu",
    layers.ReLU: "relu",
}


def activation_of(module: Any) -> str | None:
    """What linear_gated calls the module's function; None where it is none of its."""
    if type(module) in (torch.nn.GELU, layers.GELU):
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    kinds: list[type] = [type(module), *hugging_face.kinds_of(module)]
    if isinstance(module, Swapped):  # it was tried then
        kinds = list(type(module).__mro__)
    found = next((kind for kind in kinds if kind in ACTIVATIONS), None)
    if found is None or isinstance(module, Swapped) or not issubclass(found, Swapped):
        return ACTIVATIONS.get(found)
    return ACTIVATIONS[found] if hugging_face.agrees(module, found) else None


def find(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, tuple[str, ...], list[Any]]]:
    """The modules with products to join: which children, and the class that each of the changed gets."""
    for module in model.modules():
        if any("_joined" in part.__dict__ for part in (module, *module.children())):
            continue
        if isinstance(module, GatedParts):
            own: Any = hugging_face.original(module)
            yield module, GATED, [(module, hugging_face.joined(GatedJoined, own))]
        elif getattr(module, "is_causal", False) and all(map(module._modules.get, HEADS)):
            parts = [module._modules[name] for name in HEADS]
            kinds: Any = zip(
                parts, (FirstPart, OtherPart, OtherPart), map(type, parts), strict=True
            )
            yield module, HEADS, [(p, hugging_face.joined(kind, own)) for p, kind, own in kinds]


def refusal(module: torch.nn.Module, names: tuple[str, ...]) -> str | None:
    """Why the children stay apart."""
    parts: Any = [module._modules[name] for name in names]
    if any(type(part) not in PLAIN for part in parts):
        return "one is no plain Linear"
    if not may_join(parts):
        return "their types, devices or sizes differ"
    if names == GATED:
        if parts[0].bias is not None:
            return "linear_gated has no bias"
        if activation_of(module.act_fn) is None:
            return f"linear_gated has no {type(module.act_fn).__name__}"
    return None


def gain(module: Any, names: tuple[str, ...], together: Joined, one: int = 1) -> gains.Gain | None:
    """Of the children's products when they are one, with what a feed-forward part does behind them.

    one: how many rows come for one.
    """
    parts, weight, bias = together.parts, together.weight, together.bias
    if any(map(hugging_face.hooks, (*parts, getattr(module, "act_fn", module)))):
        return None

    def before(x: Tensor) -> Any:
        found = [part(x) for part in parts]
        return anyop.mul(module.act_fn(found[0]), found[1]) if names == GATED else found

    def after(x: Tensor) -> Any:
        if names == GATED:
            return anyop.linear_gated(x, weight, together.activation)
        return anyop.linear(x, weight, bias)

    def calls(rows: int) -> gains.Calls:
        x = gains.numbers((1, max(rows, one), weight.shape[1]), weight.dtype, weight.device)
        return (lambda: before(x)), (lambda: after(x))

    of = type(parts[0]), together.activation, one, tuple(weight.shape), weight.dtype, bias is None
    return gains.gain(", ".join(names), of, calls, weight.device)


def may_join(parts: list[torch.nn.Linear]) -> bool:
    """Whether the weights, and the biases, fit behind one another."""
    weights = [part.weight for part in parts]
    if any(type(w) is not torch.nn.Parameter or w.is_inference() for w in weights):
        return False
    kinds = {(w.dtype, w.device, w.shape[1]) for w in weights}
    biases = {None if part.bias is None else part.bias.dtype for part in parts}
    distinct = len({*map(id, weights)}) == len(weights)
    return distinct and len(kinds) == len(biases) == 1 and weights[0].device.type != "meta"


def _joined(parameters: list[Tensor]) -> Tensor:
    memory = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, place in zip(
        parameters, memory.split([len(p) for p in parameters]), strict=True
    ):
        parameter.data = place
    return memory


def _lies_in(memory: Tensor | None, parameters: list[Tensor]) -> bool:
    if memory is None:
        return False
    place, bytes_each = memory.data_ptr(), memory.element_size()
    for parameter in parameters:
        if (
            parameter is None
            or parameter.data_ptr() != place
            or parameter.dtype is not memory.dtype
        ):
            return False
        place += parameter.numel() * bytes_each
    return place == memory.data_ptr() + memory.numel() * bytes_each


def _name(module: torch.nn.Module) -> str:
    found: str = hugging_face.original(module).__name__
    return found


def _version(x: Tensor) -> int | None:
    return None if x.is_inference() else x._version


def _is_captured(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
