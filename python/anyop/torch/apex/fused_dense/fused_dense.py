# SPDX-License-Identifier: Apache-2.0
"""apex.fused_dense.fused_dense: a linear, one without bias, and linear, gelu (by tanh), linear."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

import anyop
from anyop.torch.apex.calls import applied, exporting, in_lower_dtype


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if exporting():
        return F.linear(input, weight, bias)
    return anyop.linear(input.contiguous(), weight.contiguous(), bias)


def fused_dense_function(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear with bias."""
    return in_lower_dtype(_linear, input, weight, bias)


def dense_no_bias_function(input: Tensor, weight: Tensor) -> Tensor:
    """A linear without bias."""
    return in_lower_dtype(_linear, input, weight, None)


def _gelu(input: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    if exporting():
        hidden = F.gelu(F.linear(input, weight1, bias1), approximate="tanh")
        return F.linear(hidden, weight2, bias2)
    call: Any = anyop.dense_gelu_dense
    return call(input.contiguous(), weight1.contiguous(), bias1, weight2.contiguous(), bias2)


def fused_dense_gelu_dense_function(
    input: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
) -> Tensor:
    """A linear, gelu by tanh and a linear."""
    return in_lower_dtype(_gelu, input, weight1, bias1, weight2, bias2)


FusedDenseFunc = applied("FusedDenseFunc", fused_dense_function, __name__)
DenseNoBiasFunc = applied("DenseNoBiasFunc", dense_no_bias_function, __name__)
FusedDenseGeluDenseFunc = applied(
    "FusedDenseGeluDenseFunc", fused_dense_gelu_dense_function, __name__
)


class FusedDense(nn.Module):
    """A linear; bias=False: without bias. Parameters begin as torch.nn.Linear's."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        made = nn.Linear(in_features, out_features, bias)
        self.weight = made.weight
        self.register_parameter("bias", made.bias)

    def forward(self, input: Tensor) -> Tensor:
        if self.bias is None:
            return dense_no_bias_function(input, self.weight)
        return fused_dense_function(input, self.weight, self.bias)


class FusedDenseGeluDense(nn.Module):
    """A linear, gelu by tanh and a linear, both with bias. Parameters begin as torch.nn.Linear's."""

    def __init__(
        self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        assert bias, "DenseGeluDense module without bias is currently not supported"
        self.in_features, self.out_features = in_features, out_features
        self.intermediate_features = intermediate_features
        first = nn.Linear(in_features, intermediate_features)
        second = nn.Linear(intermediate_features, out_features)
        self.weight1, self.bias1 = first.weight, first.bias
        self.weight2, self.bias2 = second.weight, second.bias

    def forward(self, input: Tensor) -> Tensor:
        return fused_dense_gelu_dense_function(
            input, self.weight1, self.bias1, self.weight2, self.bias2
        )
