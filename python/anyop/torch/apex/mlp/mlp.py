# SPDX-License-Identifier: Apache-2.0
"""apex.mlp.mlp: a chain of linears, each with its activation, the last one too."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import applied, check, exporting, in_lower_dtype

ACTIVATIONS = ("none", "relu", "sigmoid")  # by Apex's numbers


def layers_of(
    bias: int, args: Sequence[Tensor]
) -> tuple[Tensor, list[tuple[Tensor, Tensor | None]]]:
    """The input, and weight and bias of each layer, of `input, weights..., biases...`."""
    count = (len(args) - 1) // (2 if bias else 1)
    good = count > 0 and len(args) == 1 + count * (2 if bias else 1)
    check(good, f"mlp: {len(args)} tensors, expected an input, weights and as many biases")
    biases = args[1 + count :] if bias else [None] * count
    return args[0], list(zip(args[1 : 1 + count], biases))


def _run(bias: int, activation: int, *args: Tensor) -> Tensor:
    name = ACTIVATIONS[activation]
    found, layers = layers_of(bias, args)
    for weight, row in layers:
        if exporting():
            found = F.linear(found, weight, row)
            found = found if name == "none" else getattr(torch, name)(found)
        else:
            found = anyop.linear_act(found.contiguous(), weight.contiguous(), row, None, name)
    return found


def mlp_function(bias: int, activation: int, *args: Tensor) -> Tensor:
    """All layers; activation: 0 none, 1 relu, 2 sigmoid; args: input, weights, then biases where bias is 1."""
    check(activation in (0, 1, 2), f"mlp: activation is {activation}, expected 0, 1 or 2")
    return in_lower_dtype(_run, bias, activation, *args)


MlpFunction = applied("MlpFunction", mlp_function, __name__)


class MLP(nn.Module):
    """Linears of the sizes mlp_sizes[0] -> mlp_sizes[1] -> ..., each with the activation."""

    def __init__(
        self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu"
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise TypeError("activation must be relu or none or sigmoid.")
        self.num_layers = len(mlp_sizes) - 1
        self.mlp_sizes = list(mlp_sizes)
        self.bias = 1 if bias else 0
        self.activation = ACTIVATIONS.index(activation)
        self.weights: list[nn.Parameter] = []
        self.biases: list[nn.Parameter] = []
        for i in range(self.num_layers):
            weight = nn.Parameter(torch.empty(mlp_sizes[i + 1], mlp_sizes[i]))
            self.weights.append(weight)
            setattr(self, f"weight_{i}", weight)
            if bias:
                row = nn.Parameter(torch.empty(mlp_sizes[i + 1]))
                self.biases.append(row)
                setattr(self, f"bias_{i}", row)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal numbers, of variance 2 / (inputs + outputs), those of a bias 1 / outputs."""
        for weight in self._each("weight"):
            nn.init.normal_(weight, 0.0, math.sqrt(2.0 / (weight.size(0) + weight.size(1))))
        for row in self._each("bias"):
            nn.init.normal_(row, 0.0, math.sqrt(1.0 / row.size(0)))

    def forward(self, input: Tensor) -> Tensor:
        return mlp_function(
            self.bias, self.activation, input, *self._each("weight"), *self._each("bias")
        )

    def _each(self, kind: str) -> list[Tensor]:
        """By attribute: a conversion or a copy of the module may have put others there."""
        count = self.num_layers if kind == "weight" or self.bias else 0
        return [getattr(self, f"{kind}_{i}") for i in range(count)]

    def extra_repr(self) -> str:
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"
