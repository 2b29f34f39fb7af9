# SPDX-License-Identifier: Apache-2.0
"""flashinfer.gemm's products by their names; arguments that choose a kernel (backend, pdl, mma_sm) change nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.deep_gemm import bf16_gemm_nt, m_grouped_fp8_gemm_nt_contiguous


def _name(out: Tensor | None, dtype: torch.dtype | None, default: torch.dtype) -> str:
    found = out.dtype if out is not None else dtype or default
    return str(found).removeprefix("torch.")


def _check_blocks(scale_granularity_mnk: tuple[int, int, int] | None) -> None:
    if scale_granularity_mnk not in (None, (1, 128, 128)):
        raise NotImplementedError(
            f"anyop.torch.flashinfer.gemm: scale_granularity_mnk is {scale_granularity_mnk}, expected "
            "(1, 128, 128)"
        )


@torch.no_grad()
def mm_bf16(
    a: Tensor, b: Tensor, bias: Tensor | None = None, pdl: bool = False, out: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """A (M, K) by b (K, N), a transposed view of weights in rows, plus bias; in a's dtype or float32."""
    if out_dtype is torch.float32 and a.dtype is not torch.float32:
        out = a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype) if out is None else out
        rows = None if bias is None else bias.float().expand_as(out)
        bf16_gemm_nt(a, b.t(), out, rows)
        return out
    if out_dtype is not a.dtype:
        raise NotImplementedError(
            f"mm_bf16: out_dtype is {out_dtype}, expected {a.dtype} or float32"
        )
    call: Any = anyop.linear
    return call(a, b.t().contiguous(), bias, **({} if out is None else {"out": out}))


@torch.no_grad()
def bmm_fp8(
    A: Tensor, B: Tensor, A_scale: Tensor, B_scale: Tensor, dtype: torch.dtype,
    out: Tensor | None = None, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """A (B, M, K) by B (B, K, N), transposed views of weights in rows, with one scale each."""
    if out is None:
        out = A.new_empty(*A.shape[:2], B.shape[2], dtype=dtype)
    a_scale, b_scale = (scale.float().reshape(()) for scale in (A_scale, B_scale))
    for a, b, to in zip(A, B, out):
        call: Any = anyop.linear_w8a8
        call(a, b.t().contiguous(), a_scale, b_scale, out_dtype=_name(to, None, dtype), out=to)
    return out


@torch.no_grad()
def gemm_fp8_nt_groupwise(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, scale_major_mode: str | None = None,
    mma_sm: int = 1, scale_granularity_mnk: tuple[int, int, int] = (1, 128, 128),
    out: Tensor | None = None, out_dtype: torch.dtype | None = None, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """A (M, K) by b (N, K) with scales of blocks; scale_major_mode 'MN': scales are (K/128, M), (K/128, N/128)."""
    _check_blocks(scale_granularity_mnk)
    if scale_major_mode not in (None, "K", "MN"):
        raise ValueError(
            f"anyop.torch.flashinfer.gemm: scale_major_mode is {scale_major_mode!r}, expected 'K' or 'MN'"
        )
    if scale_major_mode == "MN":
        a_scale, b_scale = a_scale.t(), b_scale.t()
    call: Any = anyop.linear_fp8_block
    dtype = _name(out, out_dtype, torch.bfloat16)
    more = {} if out is None else {"out": out}
    return call(a, b, a_scale, b_scale.contiguous(), out_dtype=dtype, **more)


@torch.no_grad()
def group_deepgemm_fp8_nt_groupwise(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, m_indices: Tensor,
    scale_granularity_mnk: tuple[int, int, int] | None = None, out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Rows of a by the weights of their experts, m_indices, in any order."""
    _check_blocks(scale_granularity_mnk)
    if out is None:
        out = a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype or torch.bfloat16)
    m_grouped_fp8_gemm_nt_contiguous((a, a_scale), (b, b_scale), out, m_indices)
    return out


@torch.no_grad()
def batch_deepgemm_fp8_nt_groupwise(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, masked_m: Tensor, expected_m: int = 0,
    scale_granularity_mnk: tuple[int, int, int] | None = None, out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """The first masked_m[e] rows of each a[e] by b[e]; other rows are 0. expected_m is not needed."""
    _check_blocks(scale_granularity_mnk)
    dtype, counts = _name(out, out_dtype, torch.bfloat16), masked_m.to(torch.int32)
    call: Any = anyop.grouped_linear_fp8_block_masked
    more = {} if out is None else {"out": out}
    return call(a, b, a_scale, b_scale, counts, out_dtype=dtype, **more)
