# SPDX-License-Identifier: Apache-2.0
"""DeepGEMM's products that are grouped along K, the gradients of experts' weights, for anyop.torch.deep_gemm.

D[g] = C[g] + A[g]^T B[g], float32, over the rows of group g, one product of each group. Operands of 8 bits, with a
scale for 128 rows of each column, become float32, which holds them with one rounding, and are multiplied so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import anyop

Scaled = tuple[Tensor, Tensor]  # 8-bit floats, and their scales
Recipe = tuple[int, int, int]
COLUMNS: Recipe = (1, 1, 128)  # one scale for 128 of K of each row of A, of each of B


def check(name: str, recipe: Recipe | None, expected: Recipe, more: dict[str, Any]) -> None:
    """Blocks of other sizes, and arguments of newer versions that ask for something, are not taken."""
    if recipe is not None and tuple(recipe) != expected:
        raise NotImplementedError(
            f"anyop.torch.deep_gemm: {name}: recipe is {recipe}, expected {expected}"
        )
    asked = [key for key, value in more.items() if value not in (None, False)]
    if asked:
        raise NotImplementedError(
            f"anyop.torch.deep_gemm: {name} does not take {', '.join(asked)}; docs/products.md says what is there"
        )


def check_sum(name: str, d: Tensor, c: Tensor | None) -> None:
    if c is not None and (d.dtype is not torch.float32 or c.dtype is not torch.float32):
        raise TypeError(
            f"anyop.torch.deep_gemm: {name} adds c of {c.dtype} to d of {d.dtype}, expected float32 for both"
        )


def _begin(name: str, d: Tensor, c: Tensor | None) -> None:
    """D = C, to which products are added."""
    if d.dtype is not torch.float32 or d.dim() != 3:
        raise TypeError(
            f"anyop.torch.deep_gemm: {name}: d is {d.dtype} with {d.dim()} dimensions, expected float32 with 3"
        )
    check_sum(name, d, c)
    if c is None:
        d.zero_()
    elif c is not d:
        d.copy_(c)


def _groups(name: str, ks: Sequence[int] | None, d: Tensor, total: int) -> list[tuple[int, int]]:
    """Where the rows of each group begin and end. The lengths are the host's, so that nothing waits for the device."""
    if ks is None:
        raise NotImplementedError(
            f"anyop.torch.deep_gemm: {name}: ks is None, expected the length of each group"
        )
    lengths = [int(k) for k in ks]
    if len(lengths) != d.shape[0] or min(lengths, default=0) < 0 or sum(lengths) != total:
        raise ValueError(
            f"anyop.torch.deep_gemm: {name}: ks is {lengths}, expected {d.shape[0]} lengths, of {total} together"
        )
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    return list(zip(ends, ends[1:]))


def _add(a: Tensor, b: Tensor, d: Tensor) -> None:
    """D += A^T B, of rows of K."""
    anyop.linear_wgrad_accumulate(b.contiguous(), a.contiguous(), d)


def _wide(x: Tensor, scale: Tensor) -> Tensor:
    """Rows of K with a scale for 128 of each column, in float32."""
    K = x.shape[0]
    return x.float() * scale.repeat_interleave(128, 0, output_size=128 * scale.shape[0])[:K]


def _scale_rows(name: str, x: Scaled, groups: list[tuple[int, int]], dim: int) -> Iterator[Tensor]:
    """The scales of each group, (ceil(k/128), columns); dim: that of K."""
    counts = [-(-(end - begin) // 128) for begin, end in groups]
    scale = x[1]
    if scale.dtype is not torch.float32 or scale.dim() != 2 or scale.shape[dim] != sum(counts):
        raise ValueError(
            f"anyop.torch.deep_gemm: {name}: scales are {scale.dtype} {tuple(scale.shape)}, expected float32 with "
            f"{sum(counts)} in dimension {dim}"
        )
    return iter((scale if dim == 0 else scale.t()).split(counts))


@torch.no_grad()
def k_grouped_bf16_gemm_tn_contiguous(
    a: Tensor, b: Tensor, d: Tensor, ks: Sequence[int] | None, ks_tensor: Tensor | None = None,
    c: Tensor | None = None, compiled_dims: str = "mn", **more: Any,
) -> None:  # fmt: skip
    """D[g] = C[g] + A[g]^T B[g] of rows a (sum of ks, M) and b (sum of ks, N).

    ks_tensor, the same numbers on the device, is not read. c may be d; None is 0.
    """
    name = "k_grouped_bf16_gemm_tn_contiguous"
    check(name, None, COLUMNS, more)
    groups = _groups(name, ks, d, a.shape[0])
    _begin(name, d, c)
    for to, (begin, end) in zip(d, groups):
        _add(a[begin:end], b[begin:end], to)


@torch.no_grad()
def k_grouped_fp8_gemm_tn_contiguous(
    a: Scaled, b: Scaled, d: Tensor, ks: Sequence[int] | None, ks_tensor: Tensor | None = None,
    c: Tensor | None = None, recipe: Recipe = COLUMNS, compiled_dims: str = "mn", **more: Any,
) -> None:  # fmt: skip
    """The same of 8-bit floats; scales are (sum of ceil(k/128), M) and (sum of ceil(k/128), N)."""
    name = "k_grouped_fp8_gemm_tn_contiguous"
    check(name, recipe, COLUMNS, more)
    groups = _groups(name, ks, d, a[0].shape[0])
    a_scales, b_scales = (_scale_rows(name, x, groups, 0) for x in (a, b))
    _begin(name, d, c)
    for to, (begin, end), a_scale, b_scale in zip(d, groups, a_scales, b_scales):
        _add(_wide(a[0][begin:end], a_scale), _wide(b[0][begin:end], b_scale), to)


@torch.no_grad()
def k_grouped_fp8_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Tensor, ks: Sequence[int] | None, ks_tensor: Tensor | None = None,
    c: Tensor | None = None, recipe: Recipe = COLUMNS, compiled_dims: str = "mn", **more: Any,
) -> None:  # fmt: skip
    """The same of operands that lie along K: of each group (M, k) and (N, k), one behind the other in one dimension;
    scales are (M, sum of ceil(k/128)) and (N, sum of ceil(k/128)).
    """
    name = "k_grouped_fp8_gemm_nt_contiguous"
    check(name, recipe, COLUMNS, more)
    M, N = d.shape[-2:]
    groups = _groups(name, ks, d, a[0].numel() // max(M, 1))
    a_scales, b_scales = (_scale_rows(name, x, groups, 1) for x in (a, b))
    _begin(name, d, c)
    left, right = a[0].reshape(-1), b[0].reshape(-1)
    for to, (begin, end), a_scale, b_scale in zip(d, groups, a_scales, b_scales):
        rows = left[begin * M : end * M].view(M, end - begin).t()
        columns = right[begin * N : end * N].view(N, end - begin).t()
        _add(_wide(rows, a_scale), _wide(columns, b_scale), to)


def wgrad_gemm_fp8_fp8_fp32_nt(lhs: Scaled, rhs: Scaled, out: Tensor) -> None:
    """Out += lhs rhs^T of (M, K) and (N, K), with scales (M, ceil(K/128)) and (N, ceil(K/128)): a first name."""
    k_grouped_fp8_gemm_nt_contiguous(lhs, rhs, out[None], [lhs[0].shape[1]], c=out[None])


def k_grouped_wgrad_gemm_fp8_fp8_fp32_nt(
    lhs: Scaled, rhs: Scaled, out: Tensor, batch_sizes: Sequence[int]
) -> None:
    """Out[g] += lhs[g] rhs[g]^T, by its first name: scales lie one group behind the other, too."""
    at = [0, 0, 0, 0]
    for to, k in zip(out, batch_sizes, strict=True):
        parts = []
        for i, (x, size) in enumerate(
            ((lhs[0], k), (lhs[1], -(-k // 128)), (rhs[0], k), (rhs[1], -(-k // 128)))
        ):
            rows = to.shape[i // 2]
            parts.append(x.reshape(-1)[at[i] : at[i] + rows * size].view(rows, size))
            at[i] += rows * size
        wgrad_gemm_fp8_fp8_fp32_nt((parts[0], parts[1]), (parts[2], parts[3]), to)
