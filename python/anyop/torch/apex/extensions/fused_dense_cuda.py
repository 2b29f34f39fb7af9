# SPDX-License-Identifier: Apache-2.0
"""fused_dense_cuda: linear, and linear with gelu (by tanh) and linear, with their gradients, raw."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop


@torch.no_grad()
def linear_bias_forward(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Input weight^T + bias."""
    return anyop.linear(input.contiguous(), weight.contiguous(), bias)


@torch.no_grad()
def linear_bias_backward(input: Tensor, weight: Tensor, d_output: Tensor) -> list[Tensor]:
    """Gradients of input, weight and bias."""
    backward: Any = anyop.linear_backward
    return list(backward(d_output.contiguous(), input.contiguous(), weight.contiguous()))


@torch.no_grad()
def linear_gelu_linear_forward(
    input: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
) -> list[Tensor]:
    """What gelu gave, the result, and what gelu was applied to."""
    native: Any = anyop.native_dense_gelu_dense
    values = input.contiguous(), weight1.contiguous(), bias1, weight2.contiguous(), bias2
    out, gelu_in, hidden = native(*values)
    return [hidden, out, gelu_in]


@torch.no_grad()
def linear_gelu_linear_backward(
    input: Tensor, gelu_in: Tensor, output1: Tensor, weight1: Tensor, weight2: Tensor,
    d_output2: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Gradients of input, weight1, bias1, weight2 and bias2."""
    values = d_output2, input, weight1, weight2, gelu_in, output1
    backward: Any = anyop.dense_gelu_dense_backward
    return list(backward(*(value.contiguous() for value in values)))
