# SPDX-License-Identifier: Apache-2.0
"""A cross entropy whose gradient is made with it, where the logits lie: the autograd function of its layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import anyop


def in_place(
    x: Tensor, target: Tensor, reduction: str, ignore_index: int, label_smoothing: float, z_loss: float
) -> Tensor:  # fmt: skip
    """The loss of rows x (*, V), which hold their gradient afterwards: 2 passes over memory for 3.

    x's version is raised: a gradient that needs the logits themselves is a RuntimeError, not a wrong number.
    Raises RuntimeError where x, or what it is a view of, is a leaf that requires a gradient, as torch does in place.
    """
    base = x if x._base is None else x._base
    if x.requires_grad and base.is_leaf:
        raise RuntimeError(
            "a leaf that requires a gradient is used in an in-place operation: CrossEntropyLoss("
            "inplace=True) writes the gradient where the logits are"
        )
    loss: Tensor = _CrossEntropyInPlace.apply(
        x, target, reduction, ignore_index, label_smoothing, z_loss
    )
    return loss


class _CrossEntropyInPlace(torch.autograd.Function):
    """Overwrites x: with its gradient in forward, times what comes from above in backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, target: Tensor, reduction: str, ignore_index: int, label_smoothing: float,
        z_loss: float,
    ) -> Tensor:  # fmt: skip
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        scale = None
        if reduction == "mean":
            scale = (target != ignore_index).sum().to(wide).reciprocal()
        logits = x.detach()  # the same memory and version
        loss, _ = anyop.cross_entropy_with_grad(
            logits, target, scale, ignore_index=ignore_index, label_smoothing=label_smoothing,
            z_loss=z_loss, grad_x=logits,
        )  # fmt: skip
        ctx.grad, ctx.version = logits, logits._version
        if reduction == "none":
            return loss
        return loss.sum() if scale is None else loss.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad, ctx.grad = ctx.grad, None
        if grad is None:
            raise RuntimeError(
                "CrossEntropyLoss(inplace=True) has one backward pass: its gradient was handed out"
            )
        if grad._version != ctx.version:
            raise RuntimeError(
                "the logits of CrossEntropyLoss(inplace=True) hold their gradient, and were written to "
                "before backward()"
            )
        return anyop.scale_rows(grad, grad_loss.contiguous(), out=grad), *[None] * 5
