# SPDX-License-Identifier: Apache-2.0
"""fused_conv_bias_relu: convolutions of NCHW images with bias, mask and relu, and their gradients, raw.

The gradient of a bias has its shape (1, K, 1, 1) and is float32, as Apex's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.contrib.conv_bias_relu.conv_bias_relu import (
    channels_first,
    channels_last,
    convolve,
)


@torch.no_grad()
def forward(inputs: Sequence[Tensor], padding: int, stride: int) -> list[Tensor]:
    """inputs: x, weight, bias; the one result is relu(conv + bias)."""
    x, weight, bias = inputs
    return [convolve(x, weight, None, bias, None, padding, stride, True)]


@torch.no_grad()
def forward_no_relu(inputs: Sequence[Tensor], padding: int, stride: int) -> list[Tensor]:
    """inputs: x, weight, bias; the one result is conv + bias."""
    x, weight, bias = inputs
    return [convolve(x, weight, None, bias, None, padding, stride, False)]


@torch.no_grad()
def forward_mask(inputs: Sequence[Tensor], padding: int, stride: int) -> list[Tensor]:
    """inputs: x, weight, bias, mask; the one result is relu((conv + bias) * mask)."""
    x, weight, bias, mask = inputs
    return [convolve(x, weight, None, bias, mask, padding, stride, True)]


@torch.no_grad()
def forward_cscale_cbias_relu(inputs: Sequence[Tensor], padding: int, stride: int) -> Tensor:
    """inputs: x, weight, scale, bias; relu(conv * scale + bias), no list."""
    x, weight, scale, bias = inputs
    return convolve(x, weight, scale, bias, None, padding, stride, True)


def _gradients(
    x: Tensor, weight: Tensor, scale: Tensor | None, out: Tensor | None, grad: Tensor,
    padding: int, stride: int,
) -> list[Tensor]:  # fmt: skip
    images, windows, from_behind = (channels_last(t) for t in (x, weight, grad))
    result = from_behind if out is None else channels_last(out)
    factors = None if scale is None else scale.reshape(-1)
    back: Any = anyop.conv_bias_act_backward
    of_x, of_weight, of_bias, _ = back(
        from_behind, images, windows, factors, result, stride, padding, 1, out is not None,
        grad_residual=False,
    )  # fmt: skip
    wide = of_bias if of_bias.dtype is torch.float64 else of_bias.float()
    return [channels_first(of_x), channels_first(of_weight), wide.view(1, -1, 1, 1)]


@torch.no_grad()
def backward(inputs: Sequence[Tensor], padding: int, stride: int) -> list[Tensor]:
    """inputs: x, weight, the result, its gradient; gradients of x, weight and bias."""
    x, weight, out, grad = inputs
    return _gradients(x, weight, None, out, grad, padding, stride)


@torch.no_grad()
def backward_no_relu(inputs: Sequence[Tensor], padding: int, stride: int) -> list[Tensor]:
    """inputs: x, weight, the gradient of the result; gradients of x, weight and bias."""
    x, weight, grad = inputs
    return _gradients(x, weight, None, None, grad, padding, stride)


@torch.no_grad()
def backward_cscale_cbias_relu(inputs: Sequence[Tensor], padding: int, stride: int) -> list[Tensor]:
    """inputs: x, weight, scale, the result, its gradient; gradients of x and weight."""
    x, weight, scale, out, grad = inputs
    return _gradients(x, weight, scale, out, grad, padding, stride)[:2]
