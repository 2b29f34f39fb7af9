# SPDX-License-Identifier: Apache-2.0
"""fused_rotary_positional_embedding: rotary embeddings and their gradients, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import check
from anyop.torch.apex.transformer.functional.fused_rope import rotate_2d, rotate_sbhd, rotate_thd


@torch.no_grad()
def forward(input: Tensor, freqs: Tensor, transpose_output: bool) -> Tensor:
    """Input (s, b, h, d), freqs (s, 1, 1, d2)."""
    return rotate_sbhd(anyop.rope, input, freqs.cos(), freqs.sin(), transpose_output)


@torch.no_grad()
def backward(output_grads: Tensor, freqs: Tensor, transpose_output: bool) -> Tensor:
    """The gradient of forward's input."""
    angles = freqs.cos(), freqs.sin()
    return rotate_sbhd(anyop.rope_backward, output_grads, *angles, transpose_output)


@torch.no_grad()
def forward_cached(input: Tensor, cos: Tensor, sin: Tensor, transpose_output: bool) -> Tensor:
    """Input (s, b, h, d), cos and sin (s, 1, 1, d2)."""
    return rotate_sbhd(anyop.rope, input, cos, sin, transpose_output)


@torch.no_grad()
def backward_cached(
    output_grads: Tensor, cos: Tensor, sin: Tensor, transpose_output: bool
) -> Tensor:  # fmt: skip
    """The gradient of forward_cached's input."""
    return rotate_sbhd(anyop.rope_backward, output_grads, cos, sin, transpose_output)


@torch.no_grad()
def forward_thd(input: Tensor, cu_seqlens: Tensor, freqs: Tensor) -> Tensor:
    """Input (t, h, d), freqs (longest, 1, 1, d2)."""
    return rotate_thd(anyop.rope, input, cu_seqlens, freqs)


@torch.no_grad()
def backward_thd(output_grads: Tensor, cu_seqlens: Tensor, freqs: Tensor) -> Tensor:
    """The gradient of forward_thd's input."""
    return rotate_thd(anyop.rope_backward, output_grads, cu_seqlens, freqs)


@torch.no_grad()
def forward_2d(
    input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor
) -> Tensor:  # fmt: skip
    """Input (b, rows, columns, h, d); the result (b, rows * columns, h, d)."""
    check(input.dim() == 5, "expected 5D tensor")
    more = *input.shape[1:3], cos_h, sin_h, cos_w, sin_w
    return rotate_2d(anyop.rope, input.flatten(1, 2), *more)


@torch.no_grad()
def backward_2d(
    output_grads: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor
) -> Tensor:  # fmt: skip
    """The gradient of forward_2d's input, (b, rows * columns, h, d)."""
    check(output_grads.dim() == 5, "expected 5D tensor")
    more = *output_grads.shape[1:3], cos_h, sin_h, cos_w, sin_w
    return rotate_2d(anyop.rope_backward, output_grads.flatten(1, 2), *more)
