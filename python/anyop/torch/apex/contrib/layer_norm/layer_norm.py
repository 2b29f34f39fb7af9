# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.layer_norm.layer_norm: layer norm of the last dimension, with any hidden size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter, init
from torch.nn import functional as F

from anyop.torch.apex.calls import applied, exporting
from anyop.torch.apex.normalization.fused_layer_norm import mixed_dtype_fused_layer_norm_affine


def _fast_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, memory_efficient: bool = False
) -> Tensor:
    """The result has the dtype of the weight, as Apex's."""
    return mixed_dtype_fused_layer_norm_affine(
        x, weight, bias, tuple(weight.shape), epsilon, memory_efficient
    )


class FastLayerNorm(torch.nn.Module):
    """Layer norm of the last dimension, hidden_size."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        self.epsilon = eps
        self.weight = Parameter(torch.empty(hidden_size))
        self.bias = Parameter(torch.empty(hidden_size))
        self.memory_efficient = memory_efficient
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.ones_(self.weight)
        init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if exporting():
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)
        return _fast_layer_norm(x, self.weight, self.bias, self.epsilon, self.memory_efficient)


FastLayerNormFN = applied("FastLayerNormFN", _fast_layer_norm, __name__)
