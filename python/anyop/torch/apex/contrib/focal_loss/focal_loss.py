# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.focal_loss.focal_loss: focal loss of sigmoids, summed and divided by one number."""

from __future__ import annotations

from torch import Tensor

import anyop
from anyop.torch.apex.calls import applied, check

__all__ = ["FocalLoss", "focal_loss"]


def focal_loss(
    cls_output: Tensor, cls_targets_at_level: Tensor, num_positive_sum: Tensor,
    num_real_classes: int, alpha: float, gamma: float, label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The loss, float32, of logits (*, V), of which the first num_real_classes count, and targets (*).

    A target is a class, -1 where there is none, -2 where the row has no loss.
    """
    check(num_positive_sum.numel() == 1, "expected num_positives_sum to have one element")
    loss: Tensor = anyop.focal_loss(
        cls_output.contiguous(), cls_targets_at_level.contiguous(), num_positive_sum.reshape(()),
        num_real_classes, alpha, gamma, smoothing=label_smoothing,
    )[0]  # fmt: skip
    return loss


FocalLoss = applied("FocalLoss", focal_loss, __name__)
