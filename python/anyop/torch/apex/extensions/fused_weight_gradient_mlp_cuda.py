# SPDX-License-Identifier: Apache-2.0
"""fused_weight_gradient_mlp_cuda: adds the gradient of a weight to a tensor; Megatron imports it by this name."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop


@torch.no_grad()
def _accumulate(input: Tensor, d_output: Tensor, d_weight: Tensor) -> None:
    rows, grads = (x.reshape(-1, x.shape[-1]).contiguous() for x in (input, d_output))
    anyop.linear_wgrad_accumulate(rows, grads, d_weight)


def wgrad_gemm_accum_fp32(input: Tensor, d_output: Tensor, d_weight: Tensor) -> None:
    """d_weight, of float32, += d_output^T input; leading dimensions are rows."""
    _accumulate(input, d_output, d_weight)


def wgrad_gemm_accum_fp16(input: Tensor, d_output: Tensor, d_weight: Tensor) -> None:
    """The same into d_weight of input's dtype; the sum is float32 and rounded once."""
    _accumulate(input, d_output, d_weight)
