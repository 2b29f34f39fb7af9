# SPDX-License-Identifier: Apache-2.0
"""group_norm_cuda: group norm of images in the memory format channels_last and its gradients, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop

__all__ = ["backward", "forward"]


def channels_last(x: Tensor) -> bool:
    """Whether the channels are neighbours in memory, and not the pixels."""
    inner = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return inner and not x.is_contiguous()


def parameters(
    x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Of x's dtype or float32, whatever they were."""
    if weight is None or bias is None or weight.dtype in (x.dtype, torch.float32):
        return weight, bias
    return weight.float(), bias.float()


def recorded(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, with_swish: bool
) -> tuple[Tensor, Tensor]:
    """As forward, with its gradient."""
    weight, bias = parameters(x, weight, bias)
    found, mean, rstd = anyop.group_norm_channels_last(
        x.permute(0, 2, 3, 1).contiguous(), groups, weight, bias, eps,
        activation="silu" if with_swish else "none",
    )  # fmt: skip
    sums = torch.cat([mean.detach().flatten(), rstd.detach().flatten()])
    return found.permute(0, 3, 1, 2), sums


@torch.no_grad()
def forward(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, passes: int, with_swish: bool
) -> tuple[Tensor, Tensor]:
    """The result, and a vector for backward: the groups' means, then 1 / their deviations. passes changes nothing."""
    return recorded(x, G, weight, bias, eps, with_swish)


@torch.no_grad()
def backward(
    grad_output: Tensor, sums: Tensor, x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float,
    passes: int, with_swish: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight and bias."""
    mean, rstd = sums.view(2, len(x), G)
    given = parameters(x, weight, bias)
    of_x, of_weight, of_bias = anyop.group_norm_channels_last_backward(
        grad_output.permute(0, 2, 3, 1).contiguous(), x.permute(0, 2, 3, 1).contiguous(), mean, rstd,
        G, *given, activation="silu" if with_swish else "none",
    )  # fmt: skip
    assert of_x is not None and of_weight is not None and of_bias is not None
    return of_x.permute(0, 3, 1, 2), of_weight.to(weight.dtype), of_bias.to(bias.dtype)
