# SPDX-License-Identifier: Apache-2.0
"""focal_loss_cuda: focal loss with its gradient, and that times what comes from above, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check


@torch.no_grad()
def forward(
    cls_output: Tensor, cls_targets_at_level: Tensor, num_positives_sum: Tensor,
    num_real_classes: int, alpha: float, gamma: float, smoothing_factor: float,
) -> list[Tensor]:  # fmt: skip
    """The loss, and its gradient before it is divided by num_positives_sum."""
    check(num_positives_sum.numel() == 1, "expected num_positives_sum to have one element")
    found = anyop.focal_loss(
        cls_output.contiguous(), cls_targets_at_level.contiguous(), num_positives_sum.reshape(()),
        num_real_classes, alpha, gamma, smoothing=smoothing_factor,
    )  # fmt: skip
    return list(found)


@torch.no_grad()
def backward(grad_output: Tensor, partial_grad: Tensor, num_positives_sum: Tensor) -> Tensor:
    """partial_grad, which becomes the gradient in place, as Apex's."""
    given = partial_grad, num_positives_sum.reshape(()), grad_output.reshape(())
    return anyop.focal_loss_backward(*given, grad_x=partial_grad)
