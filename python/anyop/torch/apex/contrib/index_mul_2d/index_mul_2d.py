# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.index_mul_2d.index_mul_2d: rows of a table, found by index, times rows."""

from __future__ import annotations

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import applied, check

__all__ = ["IndexMul2dBackward_", "IndexMul2d_", "index_mul_2d", "index_mul_2d_backward"]


def index_mul_2d(in1: Tensor, in2: Tensor, idx1: Tensor) -> Tensor:
    """in1[idx1] * in2 of in1 (V, D), in2 (N, D) and idx1 (N), int32 or int64; differentiable twice."""
    assert in2.size(0) == idx1.size(0)
    check(
        in1.dtype in _DTYPES and in2.dtype == in1.dtype,
        "expected in1 and in2 to be of one dtype: float32, float16, bfloat16 or float64",
    )
    check(in1.dim() == 2 and in2.dim() == 2, "expected in1 and in2 to have 2 dimensions")
    check(idx1.dim() == 1, "expected idx1 to have 1 dimension")
    out: Tensor = anyop.index_mul_2d(in1.contiguous(), in2.contiguous(), idx1.contiguous())
    return out


def index_mul_2d_backward(
    in1: Tensor, in2: Tensor, idx1: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of in1 and in2; differentiable."""
    tensors = (tensor.contiguous() for tensor in (grad_out, in1, in2, idx1))
    grad_in1, grad_in2 = anyop.index_mul_2d_backward(*tensors)
    return grad_in1, grad_in2


_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
IndexMul2d_ = applied("IndexMul2d_", index_mul_2d, __name__)
IndexMul2dBackward_ = applied("IndexMul2dBackward_", index_mul_2d_backward, __name__)
