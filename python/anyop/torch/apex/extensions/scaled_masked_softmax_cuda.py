# SPDX-License-Identifier: Apache-2.0
"""scaled_masked_softmax_cuda: softmax of scores that a mask leaves out, and its gradient, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check


@torch.no_grad()
def forward(input: Tensor, mask: Tensor, scale_factor: float | Tensor) -> Tensor:
    """Input (b, np, sq, sk); a score is left out where the mask (b or 1, 1, sq, sk) is not 0."""
    check(input.dim() == 4, "expected 4D tensor")
    check(mask.dim() == 4, "expected 4D tensor")
    return anyop.scaled_masked_softmax(input.contiguous(), mask, float(scale_factor))


@torch.no_grad()
def backward(
    output_grads: Tensor, softmax_results: Tensor, scale_factor: float | Tensor
) -> Tensor:  # fmt: skip
    """The gradient of input from the result."""
    check(output_grads.dim() == softmax_results.dim() == 4, "expected 4D tensor")
    grads, results = output_grads.contiguous(), softmax_results.contiguous()
    return anyop.scaled_softmax_backward(grads, results, float(scale_factor))


def get_batch_per_block(
    query_seq_len: int, key_seq_len: int, batches: int, attn_heads: int
) -> int:  # fmt: skip
    """Rows that a block of Apex's kernel takes: 128 threads, a warp for one row or for two short ones."""
    lanes = 1
    while lanes < 32 and lanes < key_seq_len:  # a tracer's sizes are no int
        lanes *= 2
    return 128 // lanes * (2 if key_seq_len <= 128 else 1)
