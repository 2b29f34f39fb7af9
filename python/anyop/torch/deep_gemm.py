# SPDX-License-Identifier: Apache-2.0
"""DeepGEMM's functions by their names, over anyop's operators: `import anyop.torch.deep_gemm as deep_gemm`.

Each writes its result into d. Scales lie in any order of strides, groups have any length: nothing is padded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop

Scaled = tuple[Tensor, Tensor]  # 8-bit floats, and their scales


def _name(d: Tensor) -> str:
    return str(d.dtype).removeprefix("torch.")


@torch.no_grad()
def fp8_gemm_nt(a: Scaled, b: Scaled, d: Tensor, c: None = None, **_: Any) -> None:
    """D = a b^T, scales of 1 x 128 of a and of 128 x 128 of b. c, to be added, is not taken."""
    _no_sum(c)
    anyop.linear_fp8_block(a[0], b[0], a[1], b[1], out_dtype=_name(d), out=d)


@torch.no_grad()
def bf16_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: None = None, **_: Any) -> None:
    """D = a b^T."""
    _no_sum(c)
    anyop.linear(a, b, out=d)


def _no_sum(c: None) -> None:
    if c is not None:
        raise NotImplementedError("anyop.torch.deep_gemm: a sum c is not taken; add it to d")


def offsets_of(m_indices: Tensor, experts: int) -> Tensor:
    """Where the rows of each expert begin, and behind the last, of the expert of each row.

    The numbers ascend. -1, which marks padding, counts to the expert before it; at the front it belongs to none.
    """
    ascending = torch.cummax(m_indices, 0).values
    bounds = torch.arange(experts + 1, device=m_indices.device, dtype=m_indices.dtype)
    return torch.searchsorted(ascending, bounds).to(torch.int32)


@torch.no_grad()
def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Tensor, m_indices: Tensor, **_: Any
) -> None:
    """Rows of a by the weights of their experts, m_indices, ascending."""
    offsets = offsets_of(m_indices, b[0].shape[0])
    anyop.grouped_linear_fp8_block(a[0], b[0], a[1], b[1], offsets, out_dtype=_name(d), out=d)


@torch.no_grad()
def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor, **_: Any
) -> None:
    """Rows of a by the weights of their experts, m_indices, ascending."""
    anyop.grouped_linear(a, b, offsets_of(m_indices, b.shape[0]), out=d)


@torch.no_grad()
def m_grouped_fp8_gemm_nt_masked(
    a: Scaled, b: Scaled, d: Tensor, masked_m: Tensor, expected_m: int = 0, **_: Any
) -> None:
    """The first masked_m[e] rows of each a[e] by b[e]; other rows of d become 0. expected_m is not needed."""
    counts, dtype = masked_m.to(torch.int32), _name(d)
    anyop.grouped_linear_fp8_block_masked(a[0], b[0], a[1], b[1], counts, out_dtype=dtype, out=d)


@torch.no_grad()
def m_grouped_bf16_gemm_nt_masked(
    a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int = 0, **_: Any
) -> None:
    """The first masked_m[e] rows of each a[e] by b[e]; other rows of d become 0. expected_m is not needed."""
    anyop.grouped_linear_masked(a, b, masked_m.to(torch.int32), out=d)


def get_col_major_tma_aligned_tensor(x: Tensor) -> Tensor:
    """Scales as they are: no order or alignment is needed."""
    return x


def get_m_alignment_for_contiguous_layout() -> int:
    """1: groups need no padding."""
    return 1
