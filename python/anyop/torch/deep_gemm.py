# SPDX-License-Identifier: Apache-2.0
"""DeepGEMM's functions by their names, over anyop's operators: `import anyop.torch.deep_gemm as deep_gemm`.

Each writes its result into d. Scales lie in any order of strides, groups have any length: nothing is padded.
`compiled_dims` and `disable_ue8m0_cast` choose kernels there and change nothing here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyop

Scaled = tuple[Tensor, Tensor]  # 8-bit floats, and their scales
Recipe = tuple[int, int, int]
BLOCKS: Recipe = (1, 128, 128)  # rows of a, rows of b, columns of both that share a scale


def _name(d: Tensor) -> str:
    return str(d.dtype).removeprefix("torch.")


def _check(name: str, recipe: Recipe | None, more: dict[str, Any]) -> None:
    """Blocks of other sizes, and arguments of newer versions that ask for something, are not taken."""
    if recipe is not None and tuple(recipe) != BLOCKS:
        raise NotImplementedError(
            f"anyop.torch.deep_gemm: {name}: recipe is {recipe}, expected {BLOCKS}"
        )
    asked = [key for key, value in more.items() if value not in (None, False)]
    if asked:
        raise NotImplementedError(
            f"anyop.torch.deep_gemm: {name} does not take {', '.join(asked)}; docs/products.md says what is there"
        )


def _check_sum(name: str, d: Tensor, c: Tensor | None) -> None:
    if c is not None and (d.dtype is not torch.float32 or c.dtype is not torch.float32):
        raise TypeError(
            f"anyop.torch.deep_gemm: {name} adds c of {c.dtype} to d of {d.dtype}, expected float32 for both"
        )


@torch.no_grad()
def fp8_gemm_nt(
    a: Scaled, b: Scaled, d: Tensor, c: Tensor | None = None, recipe: Recipe | None = None,
    compiled_dims: str = "nk", disable_ue8m0_cast: bool = False, **more: Any,
) -> None:  # fmt: skip
    """D = a b^T + c, scales of 1 x 128 of a and of 128 x 128 of b. c, which may be d, is float32, as d then is."""
    _check("fp8_gemm_nt", recipe, more)
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


def offsets_of(m_indices: Tensor, experts: int) -> Tensor:
    """Where the rows of each expert begin, and behind the last, of the expert of each row.

    The numbers ascend. -1, which marks padding, counts to the expert before it; at the front it belongs to none.
    """
    ascending = torch.cummax(m_indices, 0).values
    bounds = torch.arange(experts + 1, device=m_indices.device, dtype=m_indices.dtype)
    return torch.searchsorted(ascending, bounds).to(torch.int32)


@torch.no_grad()
def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Tensor, m_indices: Tensor, recipe: Recipe | None = None,
    compiled_dims: str = "nk", disable_ue8m0_cast: bool = False, **more: Any,
) -> None:  # fmt: skip
    """Rows of a by the weights of their experts, m_indices, ascending."""
    _check("m_grouped_fp8_gemm_nt_contiguous", recipe, more)
    offsets = offsets_of(m_indices, b[0].shape[0])
    anyop.grouped_linear_fp8_block(a[0], b[0], a[1], b[1], offsets, out_dtype=_name(d), out=d)


@torch.no_grad()
def m_grouped_bf16_gemm_nt_contiguous(
    a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor, compiled_dims: str = "nk", **more: Any
) -> None:
    """Rows of a by the weights of their experts, m_indices, ascending."""
    _check("m_grouped_bf16_gemm_nt_contiguous", None, more)
    anyop.grouped_linear(a, b, offsets_of(m_indices, b.shape[0]), out=d)


@torch.no_grad()
def m_grouped_fp8_gemm_nt_masked(
    a: Scaled, b: Scaled, d: Tensor, masked_m: Tensor, expected_m: int = 0,
    recipe: Recipe | None = None, compiled_dims: str = "nk", disable_ue8m0_cast: bool = False,
    **more: Any,
) -> None:  # fmt: skip
    """The first masked_m[e] rows of each a[e] by b[e]; other rows of d become 0. expected_m is not needed."""
    _check("m_grouped_fp8_gemm_nt_masked", recipe, more)
    counts, dtype = masked_m.to(torch.int32), _name(d)
    anyop.grouped_linear_fp8_block_masked(a[0], b[0], a[1], b[1], counts, out_dtype=dtype, out=d)


@torch.no_grad()
def m_grouped_bf16_gemm_nt_masked(
    a: Tensor, b: Tensor, d: Tensor, masked_m: Tensor, expected_m: int = 0,
    compiled_dims: str = "nk", **more: Any,
) -> None:  # fmt: skip
    """The first masked_m[e] rows of each a[e] by b[e]; other rows of d become 0. expected_m is not needed."""
    _check("m_grouped_bf16_gemm_nt_masked", None, more)
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
