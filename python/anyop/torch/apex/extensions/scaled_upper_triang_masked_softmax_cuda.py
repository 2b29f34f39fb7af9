# SPDX-License-Identifier: Apache-2.0
"""scaled_upper_triang_masked_softmax_cuda: softmax of scores up to each query's own, and its gradient, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check


@torch.no_grad()
def forward(input: Tensor, scale_factor: float | Tensor) -> Tensor:
    """Input (b * np, s, s)."""
    check(input.dim() == 3, "expected 3D tensor")
    return anyop.scaled_upper_triang_masked_softmax(input.contiguous(), float(scale_factor))


@torch.no_grad()
def backward(
    output_grads: Tensor, softmax_results: Tensor, scale_factor: float | Tensor
) -> Tensor:  # fmt: skip
    """The gradient of input from the result."""
    check(output_grads.dim() == softmax_results.dim() == 3, "expected 3D tensor")
    grads, results = output_grads.contiguous(), softmax_results.contiguous()
    return anyop.scaled_upper_triang_masked_softmax_backward(grads, results, float(scale_factor))
