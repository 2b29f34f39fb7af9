# SPDX-License-Identifier: Apache-2.0
"""scaled_softmax_cuda: softmax of scores times a factor, and its gradient, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check
from anyop.torch.apex.extensions.scaled_masked_softmax_cuda import backward

__all__ = ["backward", "forward"]


@torch.no_grad()
def forward(input: Tensor, scale_factor: float | Tensor) -> Tensor:
    """Input (b, np, sq, sk)."""
    check(input.dim() == 4, "expected 4D tensor")
    return anyop.scaled_softmax(input.contiguous(), float(scale_factor))
