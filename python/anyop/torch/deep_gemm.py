# SPDX-License-Identifier: Apache-2.0
"""DeepGEMM's functions by their names, over anyop's operators: `import anyop.torch.deep_gemm as deep_gemm`.

Each writes its result into d. Scales lie in any order of strides, groups have any length: nothing is padded.
`compiled_dims` and `disable_ue8m0_cast` choose kernels there and change nothing here. Products that are grouped along
K, weights' gradients, are in deep_gemm_k_grouped.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.deep_gemm_k_grouped import check as _check
from anyop.torch.deep_gemm_k_grouped import check_sum as _check_sum
from anyop.torch.deep_gemm_k_grouped import (
    k_grouped_bf16_gemm_tn_contiguous,
    k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous,
    k_grouped_wgrad_gemm_fp8_fp8_fp32_nt,
    wgrad_gemm_fp8_fp8_fp32_nt,
)

__all__ = [
    "bf16_gemm_nn",
    "bf16_gemm_nt",
    "bf16_gemm_tn",
    "bf16_gemm_tt",
    "fp8_gemm_nt",
    "gemm_fp8_fp8_bf16_nt",
    "get_col_major_tma_aligned_tensor",
    "get_m_alignment_for_contiguous_layout",
    "get_mn_major_tma_aligned_tensor",
    "k_grouped_bf16_gemm_tn_contiguous",
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "k_grouped_wgrad_gemm_fp8_fp8_fp32_nt",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked",
    "wgrad_gemm_fp8_fp8_fp32_nt",
]

Scaled = tuple[Tensor, Tensor]  # 8-bit floats, and their scales
Recipe = tuple[int, int, int]
BLOCKS: Recipe = (1, 128, 128)  # rows of a, rows of b, columns of both that share a scale


def _name(d: Tensor) -> str:
    return str(d.dtype).removeprefix("torch.")


@torch.no_grad()
def fp8_gemm_nt(
    a: Scaled, b: Scaled, d: Tensor, c: Tensor | None = None, recipe: Recipe | None = None,
    compiled_dims: str = "nk", disable_ue8m0_cast: bool = False, **more: Any,
) -> None:  # fmt: skip
    """D = a b^T + c, scales of 1 x 128 of a and of 128 x 128 of b. c, which may be d, is float32, as d then is."""
    _check("fp8_gemm_nt", recipe, BLOCKS, more)
    _check_sum("fp8_gemm_nt", d, c)
    if c is None:
        anyop.linear_fp8_block(a[0], b[0], a[1], b[1], out_dtype=_name(d), out=d)
    else:
        torch.add(c, anyop.linear_fp8_block(a[0], b[0], a[1], b[1], out_dtype="float32"), out=d)


@torch.no_grad()
def bf16_gemm_nt(
    a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk"
) -> None:
    """D = a b^T + c; d is bfloat16, or float32, which c then is, too. c may be d."""
    _check_sum("bf16_gemm_nt", d, c)
    if c is None and d.dtype is a.dtype:
        anyop.linear(a.contiguous(), b.contiguous(), out=d)
        return
    if c is None:
        d.zero_()
    elif c is not d:
        d.copy_(c)
    anyop.linear_wgrad_accumulate(b.t().contiguous(), a.t().contiguous(), d)


def bf16_gemm_nn(
    a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "nk"
) -> None:
    """D = a b + c."""
    bf16_gemm_nt(a, b.t(), d, c)


def bf16_gemm_tn(
    a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "mn"
) -> None:
    """D = a^T b + c."""
    bf16_gemm_nt(a.t(), b.t(), d, c)


def bf16_gemm_tt(
    a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None, compiled_dims: str = "mn"
) -> None:
    """D = a^T b^T + c."""
    bf16_gemm_nt(a.t(), b, d, c)


def _bounds(ascending: Tensor, experts: int) -> Tensor:
    """Where each expert's rows begin, and behind the last."""
    wanted = torch.arange(experts + 1, device=ascending.device, dtype=ascending.dtype)
    return torch.searchsorted(ascending, wanted).to(torch.int32)


def by_expert(
    m_indices: Tensor, experts: int, ascending: bool = False
) -> tuple[Tensor | None, Tensor]:
    """The order that brings the rows of each expert together (None: as they lie), and their offsets then.

    On the CPU rows that ascend, beside those of -1, which mark padding, stay where they are. Elsewhere nobody knows
    without waiting for the device, so they are sorted, stably, unless the caller says that they ascend.
    """
    greatest = torch.cummax(m_indices, 0).values
    if not ascending and m_indices.device.type == "cpu":
        ascending = bool(((m_indices == greatest) | (m_indices < 0)).all())
    if ascending:  # padding counts to the expert before it; at the front it belongs to none
        return None, _bounds(greatest, experts)
    ordered, order = torch.sort(m_indices, stable=True)
    return order, _bounds(ordered, experts)


def _rows(x: Tensor, order: Tensor | None) -> Tensor:
    if order is None:
        return x
    if x.element_size() == 1:  # torch gathers no 8-bit floats
        return x.view(torch.uint8).index_select(0, order).view(x.dtype)
    return x.index_select(0, order)


@torch.no_grad()
def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Tensor, m_indices: Tensor, recipe: Recipe | None = None,
    compiled_dims: str = "nk", disable_ue8m0_cast: bool = False, *, ascending: bool = False,
    **more: Any,
) -> None:  # fmt: skip
    """Rows of a by the weights of their experts, m_indices, in any order; -1 is padding, whose results are nobody's.

    ascending: anyop's own word: they ascend, so that rows are not gathered and results not scattered on a GPU.
    """
    _check("m_grouped_fp8_gemm_nt_contiguous", recipe, BLOCKS, more)
    order, offsets = by_expert(m_indices, b[0].shape[0], ascending)
    out, x, scale = (
        d if order is None else torch.empty_like(d),
        _rows(a[0], order),
        _rows(a[1], order),
    )
    anyop.grouped_linear_fp8_block(x, b[0], scale, b[1], offsets, out_dtype=_name(d), out=out)
    if order is not None:
        d.index_copy_(0, order, out)


@torch.no_grad()
def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor, compiled_dims: str = "nk", *,
    ascending: bool = False, **more: Any,
) -> None:  # fmt: skip
    """m_grouped_fp8_gemm_nt_contiguous of 16 bits, without scales."""
    _check("m_grouped_bf16_gemm_nt_contiguous", None, BLOCKS, more)
    order, offsets = by_expert(m_indices, b.shape[0], ascending)
    out = d if order is None else torch.empty_like(d)
    anyop.grouped_linear(_rows(a, order), b, offsets, out=out)
    if order is not None:
        d.index_copy_(0, order, out)


@torch.no_grad()
def m_grouped_fp8_gemm_nt_masked(
    a: Scaled, b: Scaled, d: Tensor, masked_m: Tensor, expected_m: int = 0,
    recipe: Recipe | None = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
    **more: Any,
) -> None:  # fmt: skip
    """The first masked_m[e] rows of each a[e] by b[e]; other rows of d become 0. expected_m is not needed."""
    _check("m_grouped_fp8_gemm_nt_masked", recipe, BLOCKS, more)
    counts, dtype = masked_m.to(torch.int32), _name(d)
    anyop.grouped_linear_fp8_block_masked(a[0], b[0], a[1], b[1], counts, out_dtype=dtype, out=d)


@torch.no_grad()
def m_grouped_bf16_gemm_nt_masked(
    a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int = 0,
    compiled_dims: str = "nk", **more: Any,
) -> None:  # fmt: skip
    """The first masked_m[e] rows of each a[e] by b[e]; other rows of d become 0. expected_m is not needed."""
    _check("m_grouped_bf16_gemm_nt_masked", None, BLOCKS, more)
    anyop.grouped_linear_masked(a, b, masked_m.to(torch.int32), out=d)


def gemm_fp8_fp8_bf16_nt(lhs: Scaled, rhs: Scaled, out: Tensor) -> None:
    """fp8_gemm_nt, by its first name."""
    fp8_gemm_nt(lhs, rhs, out)


def m_grouped_gemm_fp8_fp8_bf16_nt_contiguous(
    lhs: Scaled, rhs: Scaled, out: Tensor, m_indices: Tensor
) -> None:
    """m_grouped_fp8_gemm_nt_contiguous, by its first name."""
    m_grouped_fp8_gemm_nt_contiguous(lhs, rhs, out, m_indices)


def m_grouped_gemm_fp8_fp8_bf16_nt_masked(
    lhs: Scaled, rhs: Scaled, out: Tensor, masked_m: Tensor, expected_m: int = 0
) -> None:
    """m_grouped_fp8_gemm_nt_masked, by its first name."""
    m_grouped_fp8_gemm_nt_masked(lhs, rhs, out, masked_m, expected_m)


def get_mn_major_tma_aligned_tensor(x: Tensor) -> Tensor:
    """Scales as they are: no order or alignment is needed."""
    return x


def get_col_major_tma_aligned_tensor(x: Tensor) -> Tensor:
    """get_mn_major_tma_aligned_tensor, by its first name."""
    return x


def get_m_alignment_for_contiguous_layout() -> int:
    """1: groups need no padding."""
    return 1
