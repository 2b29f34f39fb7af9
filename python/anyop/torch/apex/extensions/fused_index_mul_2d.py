# SPDX-License-Identifier: Apache-2.0
"""fused_index_mul_2d: rows of a table times rows with both gradients, raw; what comes first is written."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop


@torch.no_grad()
def float_forward(out: Tensor, in1: Tensor, in2: Tensor, idx1: Tensor) -> None:
    """Write in1[idx1] * in2 into out."""
    anyop.index_mul_2d(in1, in2, idx1, out=out)


@torch.no_grad()
def float_backward(
    grad_in1: Tensor, grad_in2: Tensor, grad_out: Tensor, in1: Tensor, in2: Tensor, idx1: Tensor
) -> None:
    """The gradients of in1 and in2. grad_in1 is written, which Apex's callers set to 0 before."""
    anyop.index_mul_2d_backward(grad_out, in1, in2, idx1, grad_in1=grad_in1, grad_in2=grad_in2)


@torch.no_grad()
def float_backward_backward(
    grad_grad_out: Tensor, grad_in1: Tensor, grad_in2: Tensor, grad_out: Tensor,
    grad_grad_in1: Tensor, grad_grad_in2: Tensor, in1: Tensor, in2: Tensor, idx1: Tensor,
) -> None:  # fmt: skip
    """The gradients of float_backward's inputs."""
    anyop.index_mul_2d_double_backward(
        grad_out, in1, in2, idx1, grad_grad_in1, grad_grad_in2,
        grad_grad_out=grad_grad_out, grad_in1=grad_in1, grad_in2=grad_in2,
    )  # fmt: skip


# All dtypes; Apex has one function for each.
half_forward = float_forward
half_backward = float_backward
half_backward_backward = float_backward_backward
