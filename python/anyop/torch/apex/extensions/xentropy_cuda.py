# SPDX-License-Identifier: Apache-2.0
"""xentropy_cuda: cross entropy of rows of logits and its gradient, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check
from anyop.torch.layers import rows_of

_NONE = -(2**63)  # no label is left out here


@torch.no_grad()
def forward(input: Tensor, labels: Tensor, smoothing: float, half_to_float: bool) -> list[Tensor]:
    """Losses (N), of the logits' dtype or float32, and the logarithm of each row's sum of exponentials, float32."""
    check(input.dim() == 2 and labels.dim() == 1, "expected logits (N, V) and labels (N)")
    loss, lse = anyop.cross_entropy(
        rows_of(input), labels, ignore_index=_NONE, label_smoothing=smoothing
    )
    return [loss if half_to_float else loss.to(input.dtype), lse]


@torch.no_grad()
def backward(
    grad_loss: Tensor, logits: Tensor, max_log_sum_exp: Tensor, labels: Tensor, smoothing: float
) -> Tensor:
    """The gradient of the logits, new."""
    given = grad_loss.to(max_log_sum_exp.dtype).contiguous()
    return anyop.cross_entropy_backward(
        rows_of(logits), labels, max_log_sum_exp, given,
        ignore_index=_NONE, label_smoothing=smoothing,
    )  # fmt: skip
