# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.deep_gemm and anyop.torch.flashinfer.gemm: their calls, exactly, in small integers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop.torch.deep_gemm as deep_gemm  # noqa: E402
from anyop.torch.flashinfer import gemm  # noqa: E402

E4M3 = torch.float8_e4m3fn


def scaled(*shape, rows):
    """8-bit floats, scales that are powers of two, and what they stand for."""
    x = torch.randint(-2, 3, shape).to(E4M3)
    blocks = [*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // 128)]
    scale = torch.exp2(torch.randint(-1, 2, blocks).float())
    wide = scale.repeat_interleave(rows, -2).repeat_interleave(128, -1)
    return x, scale, x.float() * wide[..., : shape[-2], : shape[-1]]


def exact(found, expected):
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0)


def test_dense():
    a, a_scale, a_wide = scaled(7, 200, rows=1)
    b, b_scale, b_wide = scaled(130, 200, rows=128)
    expected = a_wide @ b_wide.T
    d = torch.empty(7, 130)
    deep_gemm.fp8_gemm_nt((a, a_scale.t().contiguous().t()), (b, b_scale), d)
    exact(d, expected)
    exact(
        gemm.gemm_fp8_nt_groupwise(a, b, a_scale, b_scale, "K", out_dtype=torch.float32), expected
    )
    found = gemm.gemm_fp8_nt_groupwise(
        a, b, a_scale.t().contiguous(), b_scale.t().contiguous(), "MN", out=torch.empty(7, 130)
    )
    exact(found, expected)
    x, w = torch.randint(-2, 3, (7, 20)).bfloat16(), torch.randint(-2, 3, (5, 20)).bfloat16()
    d = torch.empty(7, 5, dtype=torch.bfloat16)
    deep_gemm.bf16_gemm_nt(x, w, d)
    exact(d, x.float() @ w.float().T)
    exact(gemm.mm_bf16(x, w.t(), torch.ones(5).bfloat16()), x.float() @ w.float().T + 1)
    with pytest.raises(NotImplementedError, match="scale_granularity_mnk"):
        gemm.gemm_fp8_nt_groupwise(a, b, a_scale, b_scale, scale_granularity_mnk=(1, 64, 128))
    with pytest.raises(NotImplementedError, match="a sum c"):
        deep_gemm.fp8_gemm_nt((a, a_scale), (b, b_scale), d, c=d)


def test_batches_of_8_bits():
    a, b = torch.randint(-2, 3, (3, 7, 20)).to(E4M3), torch.randint(-2, 3, (3, 5, 20)).to(E4M3)
    half, four = torch.tensor([0.5]), torch.tensor([4.0])
    found = gemm.bmm_fp8(a, b.transpose(1, 2), half, four, torch.float32)
    exact(found, 2 * a.float() @ b.float().transpose(1, 2))


def test_grouped():
    """Rows of -1 are padding; what they hold is nobody's."""
    a, a_scale, a_wide = scaled(9, 200, rows=1)
    b, b_scale, b_wide = scaled(4, 130, 200, rows=128)
    indices = torch.tensor([-1, 0, 0, -1, 2, 2, 3, 3, -1], dtype=torch.int32)
    rows = indices >= 0
    expected = torch.einsum("mk,mnk->mn", a_wide, b_wide[indices.clamp(0).long()])
    d = torch.empty(9, 130)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a, a_scale), (b, b_scale), d, indices)
    exact(d[rows], expected[rows])
    found = gemm.group_deepgemm_fp8_nt_groupwise(
        a, b, a_scale, b_scale, indices, out_dtype=torch.float32
    )
    exact(found[rows], expected[rows])
    x, w = torch.randint(-2, 3, (9, 20)).bfloat16(), torch.randint(-2, 3, (4, 5, 20)).bfloat16()
    d = torch.empty(9, 5, dtype=torch.bfloat16)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(x, w, d, indices)
    expected = torch.einsum("mk,mnk->mn", x.float(), w.float()[indices.clamp(0).long()])
    exact(d[rows], expected[rows])


def test_masked():
    a, a_scale, a_wide = scaled(3, 6, 200, rows=1)
    b, b_scale, b_wide = scaled(3, 130, 200, rows=128)
    counts = torch.tensor([0, 4, 6], dtype=torch.int32)
    rows = (torch.arange(6) < counts[:, None]).unsqueeze(2)
    expected = torch.where(rows, a_wide @ b_wide.transpose(1, 2), 0)
    d = torch.empty(3, 6, 130)
    deep_gemm.m_grouped_fp8_gemm_nt_masked((a, a_scale), (b, b_scale), d, counts, 4)
    exact(d, expected)
    found = gemm.batch_deepgemm_fp8_nt_groupwise(
        a, b, a_scale, b_scale, counts, 4, out_dtype=torch.float32
    )
    exact(found, expected)
    x, w = torch.randint(-2, 3, (3, 6, 20)).bfloat16(), torch.randint(-2, 3, (3, 5, 20)).bfloat16()
    d = torch.empty(3, 6, 5, dtype=torch.bfloat16)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(x, w, d, counts)
    exact(d, torch.where(rows, x.float() @ w.float().transpose(1, 2), 0))
