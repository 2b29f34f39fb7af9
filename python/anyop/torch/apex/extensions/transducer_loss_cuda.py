# SPDX-License-Identifier: Apache-2.0
"""transducer_loss_cuda: the transducer loss of logarithms of probabilities and its gradient, raw."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop


@torch.no_grad()
def forward(
    x: Tensor, label: Tensor, f_len: Tensor, y_len: Tensor, batch_offset: Tensor, max_f_len: int,
    blank_idx: int, opt: int, packed_input: bool,
) -> list[Tensor]:  # fmt: skip
    """Two tensors for backward, in the places of Apex's alpha and beta, and the loss in x's dtype."""
    given = x.contiguous(), label.contiguous(), f_len, y_len.to(f_len.dtype)
    if packed_input:
        loss, *moves, _ = anyop.transducer_loss_packed(
            *given, batch_offset.long(), blank_idx, log_softmax=False
        )
    else:
        loss, *moves, _ = anyop.transducer_loss(*given, blank_idx, log_softmax=False)
    return [*moves, loss.to(x.dtype)]


@torch.no_grad()
def backward(
    x: Tensor, loss_grad: Tensor, alpha: Tensor, beta: Tensor, f_len: Tensor, y_len: Tensor,
    label: Tensor, batch_offset: Tensor, max_f_len: int, blank_idx: int, opt: int,
    fuse_softmax_backward: bool, packed_input: bool,
) -> Tensor:  # fmt: skip
    """The gradient of x, or of what log_softmax made x of. alpha, beta: what forward returned first."""
    moves = alpha, beta, torch.zeros_like(alpha), loss_grad.to(alpha.dtype).contiguous()
    given = x.contiguous(), label.contiguous(), f_len, y_len.to(f_len.dtype)
    if packed_input:
        return anyop.transducer_loss_packed_backward(
            *given, batch_offset.long(), *moves, blank_idx, log_softmax=fuse_softmax_backward
        )
    return anyop.transducer_loss_backward(
        *given, *moves, blank_idx, log_softmax=fuse_softmax_backward
    )
