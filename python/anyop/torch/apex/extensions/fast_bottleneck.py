# SPDX-License-Identifier: Apache-2.0
"""fast_bottleneck: the three or four convolutions of a bottleneck and their gradients, raw.

Its steps one by one serve SpatialBottleneck, which is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.contrib.bottleneck.bottleneck import steps
from anyop.torch.apex.contrib.conv_bias_relu.conv_bias_relu import channels_first, channels_last

_STEPS = (
    "forward_init", "forward_out1", "forward_out2", "forward_out2_halo", "forward_out2_halo_corr",
    "forward_out2_mask", "forward_out2_pad", "forward_rest", "backward_init", "backward_grad_out1",
    "backward_grad_out1_halo", "backward_grad_out1_halo_corr", "backward_grad_out1_mask",
    "backward_grad_out2", "backward_wgrad2", "backward_wgrad2_pad", "backward_rest",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _STEPS:
        raise NotImplementedError(
            f"fast_bottleneck.{name} is not in anyop.torch.apex: it is a step of SpatialBottleneck, whose halo "
            "exchange needs peer memory; forward and backward are there"
        )
    raise AttributeError(f"module {__name__} has no attribute {name}")


@torch.no_grad()
def forward(explicit_nhwc: bool, stride_1X1: int, inputs: Sequence[Tensor]) -> list[Tensor]:
    """inputs: x, 3 weights, 3 scales, 3 biases, then weight, scale and bias of the fourth convolution, if any.

    Returns what the three convolutions give.
    """
    x, *rest = inputs
    groups = [list(rest[0:3]), list(rest[3:6]), list(rest[6:9])]
    for group, more in zip(groups, rest[9:]):
        group.append(more)
    weights, scale, bias = groups
    if explicit_nhwc:
        return steps(stride_1X1, scale, bias, x, weights)
    turned = [channels_last(weight) for weight in weights]
    found = steps(stride_1X1, scale, bias, channels_last(x), turned)
    return [channels_first(images) for images in found]


@torch.no_grad()
def backward(explicit_nhwc: bool, stride_1X1: int, inputs: Sequence[Tensor]) -> list[Tensor]:
    """inputs: x, 3 weights, 3 scales, 3 biases, the gradients of the third and of the fourth convolution (scaled; or of
    what is added), the results of the first and the second, and the fourth weight, if any.

    Returns the gradients of x and of the weights.
    """
    if not explicit_nhwc:
        # Scales and biases have one number for each channel, in either order.
        turned = [channels_last(t) if t.dim() == 4 else t for t in inputs]
        return [channels_first(grad) for grad in backward(True, stride_1X1, turned)]
    x, w1, w2, w3, s1, s2, _, _, _, _, grad3, grad4, out1, out2, *w4 = inputs
    second, of_w3 = _plain(grad3, out2, w3)
    second = torch.where(out2 > 0, second * s2.reshape(-1), 0)
    first, of_w2 = _plain(second, out1, w2, padding=1)
    first = torch.where(out1 > 0, first * s1.reshape(-1), 0)
    of_x, of_w1 = _plain(first, x, w1, stride_1X1)
    if not w4:
        return [of_x + grad4, of_w1, of_w2, of_w3]
    added, of_w4 = _plain(grad4, x, w4[0], stride_1X1)
    return [of_x + added, of_w1, of_w2, of_w3, of_w4]


def _plain(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0
) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight of a convolution alone."""
    back: Any = anyop.conv_bias_act_backward
    grad = grad.contiguous()
    unwanted = {"grad_bias": False, "grad_residual": False}
    found = back(grad, x, weight, None, grad, stride, padding, 1, False, **unwanted)
    return found[0], found[1]
