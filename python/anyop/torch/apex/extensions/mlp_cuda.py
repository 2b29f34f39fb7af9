# SPDX-License-Identifier: Apache-2.0
"""mlp_cuda: a chain of linears, each with its activation, and its gradients, raw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check
from anyop.torch.apex.mlp.mlp import ACTIVATIONS, layers_of


@torch.no_grad()
def forward(use_bias: int, activation: int, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The result, then what backward needs: the input of each layer but the first, and of each activation."""
    check(activation in (0, 1, 2), f"mlp: activation is {activation}, expected 0, 1 or 2")
    found, layers = layers_of(use_bias, inputs)
    native: Any = anyop.native_linear_act
    entered, before = [], []
    for weight, bias in layers:
        entered.append(found)
        found, pre = native(
            found.contiguous(), weight.contiguous(), bias, None, ACTIVATIONS[activation]
        )
        before.append(pre)
    return [found, *entered[1:], *before]


@torch.no_grad()
def backward(
    use_bias: int, activation: int, grad_o: Tensor, fprop_outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
) -> list[Tensor]:  # fmt: skip
    """Gradients of the input, of each weight, and of each bias where there are some."""
    first, layers = layers_of(use_bias, inputs)
    count = len(layers)
    entered = [first, *fprop_outputs[1:count]]
    before = fprop_outputs[count:]
    back: Any = anyop.linear_act_backward
    weights, biases, grad = [], [], grad_o
    for at in reversed(range(count)):
        unwanted = {"grad_residual": False} | ({} if use_bias else {"grad_bias": False})
        grad, of_weight, of_bias, _ = back(
            grad.contiguous(), entered[at].contiguous(), layers[at][0].contiguous(), before[at],
            ACTIVATIONS[activation], **unwanted,
        )  # fmt: skip
        weights.append(of_weight)
        biases.append(of_bias)
    return [grad, *weights[::-1], *(biases[::-1] if use_bias else ())]
