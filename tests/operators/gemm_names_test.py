# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.deep_gemm and anyop.torch.flashinfer.gemm: their calls, exactly, in small integers."""

from __future__ import annotations

import inspect

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
    wide = gemm.mm_bf16(x, w.t(), torch.ones(5).bfloat16(), out_dtype=torch.float32)
    assert wide.dtype is torch.float32
    exact(wide, x.float() @ w.float().T + 1)
    exact(gemm.mm_bf16(x, w.t(), None, False, d.float(), torch.float32), x.float() @ w.float().T)
    with pytest.raises(NotImplementedError, match=r"mm_bf16: out_dtype is torch\.float16"):
        gemm.mm_bf16(x, w.t(), out_dtype=torch.float16)
    with pytest.raises(NotImplementedError, match="scale_granularity_mnk"):
        gemm.gemm_fp8_nt_groupwise(a, b, a_scale, b_scale, scale_granularity_mnk=(1, 64, 128))


def test_a_sum_is_added():
    """c of float32, which may be d; d of float32 from bfloat16 operands."""
    a, a_scale, a_wide = scaled(7, 200, rows=1)
    b, b_scale, b_wide = scaled(130, 200, rows=128)
    expected, c = a_wide @ b_wide.T, torch.randint(-9, 9, (7, 130)).float()
    d = torch.empty(7, 130)
    deep_gemm.fp8_gemm_nt((a, a_scale), (b, b_scale), d, c)
    exact(d, expected + c)
    deep_gemm.fp8_gemm_nt((a, a_scale), (b, b_scale), d, d, (1, 128, 128), "nk", True)
    exact(d, 2 * expected + c)
    with pytest.raises(TypeError, match=r"adds c of torch\.float32 to d of torch\.bfloat16"):
        deep_gemm.fp8_gemm_nt((a, a_scale), (b, b_scale), d.bfloat16(), c)
    x, w = torch.randint(-2, 3, (7, 20)).bfloat16(), torch.randint(-2, 3, (5, 20)).bfloat16()
    expected, c, d = x.float() @ w.float().T, torch.ones(7, 5), torch.full((7, 5), torch.nan)
    deep_gemm.bf16_gemm_nt(x, w, d)
    exact(d, expected)
    deep_gemm.bf16_gemm_nt(x, w, d, c)
    exact(d, expected + 1)
    exact(c, torch.ones(7, 5))
    deep_gemm.bf16_gemm_nt(x, w, c, c)
    exact(c, expected + 1)
    for name, left, right in (("nn", x, w.T), ("tn", x.T, w.T), ("tt", x.T, w)):
        getattr(deep_gemm, f"bf16_gemm_{name}")(left.contiguous(), right.contiguous(), d)
        exact(d, expected)


def test_what_is_not_taken_is_named():
    """Scales of other blocks would be read as if they were of these: no wrong numbers instead."""
    a, a_scale, _ = scaled(7, 200, rows=1)
    b, b_scale, _ = scaled(3, 130, 200, rows=128)
    d, indices = torch.empty(7, 130), torch.zeros(7, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"fp8_gemm_nt: recipe is \(1, 1, 128\)"):
        deep_gemm.fp8_gemm_nt((a, a_scale), (b[0], b_scale[0]), d, recipe=(1, 1, 128))
    grouped = deep_gemm.m_grouped_fp8_gemm_nt_contiguous
    with pytest.raises(NotImplementedError, match="does not take use_psum_layout"):
        grouped((a, a_scale), (b, b_scale), d, indices, use_psum_layout=True)
    with pytest.raises(ValueError, match="scale_major_mode is 'M', expected"):
        gemm.gemm_fp8_nt_groupwise(a, b[0], a_scale, b_scale[0], "M")


IN_ORDER = [-1, 0, 0, -1, 2, 2, 3, 3, -1]


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(
    "indices", [IN_ORDER, [3, 3, 0, 2, 2, -1, 0, 3], [3, 2, 1, 0, -1, -1, -1, -1], [-1] * 8]
)
def test_experts_in_any_order(indices, by_columns):
    """Rows of -1 are padding; what they hold is nobody's."""
    T, indices = len(indices), torch.tensor(indices, dtype=torch.int32)
    a, a_scale, a_wide = scaled(T, 200, rows=1)
    b, b_scale, b_wide = scaled(4, 130, 200, rows=128)
    rows, experts = indices >= 0, indices.clamp(0).long()
    expected = torch.einsum("mk,mnk->mn", a_wide, b_wide[experts])
    given, d = a_scale.t().contiguous().t() if by_columns else a_scale, torch.empty(T, 130)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a, given), (b, b_scale), d, indices)
    exact(d[rows], expected[rows])
    grouped = gemm.group_deepgemm_fp8_nt_groupwise
    found = grouped(a, b, a_scale, b_scale, indices, out_dtype=torch.float32)
    exact(found[rows], expected[rows])
    found = grouped(a, b, a_scale, b_scale, indices)
    exact(found[rows], expected[rows].bfloat16().float())
    x, w = torch.randint(-2, 3, (T, 20)).bfloat16(), torch.randint(-2, 3, (4, 5, 20)).bfloat16()
    d = torch.empty(T, 5, dtype=torch.bfloat16)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(x, w, d, indices)
    exact(d[rows], torch.einsum("mk,mnk->mn", x.float(), w.float()[experts])[rows])


def test_what_ascends_is_not_gathered():
    """On the CPU by a look, elsewhere by the caller's word; then the results are d itself."""
    indices = torch.tensor([0, 0, -1, 2, -1], dtype=torch.int32)
    order, offsets = deep_gemm.by_expert(indices, 3)
    assert order is None and offsets.tolist() == [0, 3, 3, 5]
    order, offsets = deep_gemm.by_expert(indices.flip(0), 3)
    assert order.tolist() == [0, 2, 3, 4, 1] and offsets.tolist() == [2, 4, 4, 5]
    assert deep_gemm.by_expert(indices.flip(0), 3, ascending=True)[0] is None
    x, w = torch.ones(5, 8).bfloat16(), torch.ones(3, 8, 8).bfloat16()
    d = torch.empty(5, 8, dtype=torch.bfloat16)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(x, w, d, indices, ascending=True)
    exact(d[[0, 1, 3]], torch.full((3, 8), 8.0))


def grouped_operands(ks, M, N):
    """a (K, M) and b (K, N) of groups, their scales of 128 rows, what each product is."""
    parts = [[scaled(M, k, rows=1) for k in ks], [scaled(N, k, rows=1) for k in ks]]
    exact_ones = torch.stack([a[2] @ b[2].T for a, b in zip(*parts)])
    return parts, exact_ones


def test_groups_along_k():
    """Weights' gradients: 8 bits along K and along columns, 16 bits, with and without c, which may be d."""
    ks, M, N = [256, 0, 128, 200], 5, 7
    parts, expected = grouped_operands(ks, M, N)
    c = torch.randint(-9, 9, expected.shape).float()
    lengths = torch.tensor(ks, dtype=torch.int32)
    along = [
        (torch.cat([x.reshape(-1) for x, *_ in of]), torch.cat([s for _, s, _ in of], 1))
        for of in parts
    ]
    across = [
        (torch.cat([x.t() for x, *_ in of]), torch.cat([s.t() for _, s, _ in of])) for of in parts
    ]
    for operands, call in (
        (along, deep_gemm.k_grouped_fp8_gemm_nt_contiguous),
        (across, deep_gemm.k_grouped_fp8_gemm_tn_contiguous),
        ([torch.cat([wide.t() for *_, wide in of]).bfloat16() for of in parts],
         deep_gemm.k_grouped_bf16_gemm_tn_contiguous),
    ):  # fmt: skip
        d = torch.full_like(c, torch.nan)
        call(*operands, d, ks, lengths, c)
        exact(d, expected + c)
        call(*operands, d, ks, lengths, d)
        exact(d, 2 * expected + c)
        call(*operands, d, ks, lengths)
        exact(d, expected)
        with pytest.raises(ValueError, match=r"ks is \[256\], expected 4 lengths, of 584 together"):
            call(*operands, d, [256], lengths, d)
        with pytest.raises(NotImplementedError, match="ks is None"):
            call(*operands, d, None, lengths, d)
        with pytest.raises(NotImplementedError, match="does not take use_psum_layout"):
            call(*operands, d, ks, lengths, d, use_psum_layout=True)
        with pytest.raises(TypeError, match=r"d is torch\.bfloat16 with 3 dimensions"):
            call(*operands, d.bfloat16(), ks, lengths, d)
        exact(d, expected)  # nothing was written
    with pytest.raises(NotImplementedError, match=r"recipe is \(1, 1, 32\)"):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*along, d, ks, lengths, d, (1, 1, 32))
    with pytest.raises(ValueError, match="expected float32 with 5 in dimension 1"):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*across, d, ks, lengths, d)
    one = [of[3][:2] for of in parts]
    deep_gemm.wgrad_gemm_fp8_fp8_fp32_nt(*one, d[3])
    exact(d[3], 2 * expected[3])
    before = c.clone()
    flat = [tuple(torch.cat([part[i].reshape(-1) for part in of]) for i in (0, 1)) for of in parts]
    deep_gemm.k_grouped_wgrad_gemm_fp8_fp8_fp32_nt(*flat, c, ks)
    exact(c, expected + before)


# As DeepGEMM 2.1 and FlashInfer 0.7 have them.
DEEP_GEMM = {
    "fp8_gemm_nt": "a b d c recipe compiled_dims disable_ue8m0_cast",
    "bf16_gemm_nt": "a b d c compiled_dims",
    "bf16_gemm_nn": "a b d c compiled_dims",
    "bf16_gemm_tn": "a b d c compiled_dims",
    "bf16_gemm_tt": "a b d c compiled_dims",
    "m_grouped_fp8_gemm_nt_contiguous": "a b d m_indices recipe compiled_dims disable_ue8m0_cast",
    "m_grouped_fp8_gemm_nt_masked": "a b d masked_m expected_m recipe compiled_dims disable_ue8m0_cast",
    "m_grouped_bf16_gemm_nt_contiguous": "a b d m_indices compiled_dims",
    "m_grouped_bf16_gemm_nt_masked": "a b d masked_m expected_m compiled_dims",
    "k_grouped_fp8_gemm_nt_contiguous": "a b d ks ks_tensor c recipe compiled_dims",
    "k_grouped_fp8_gemm_tn_contiguous": "a b d ks ks_tensor c recipe compiled_dims",
    "k_grouped_bf16_gemm_tn_contiguous": "a b d ks ks_tensor c compiled_dims",
    "wgrad_gemm_fp8_fp8_fp32_nt": "lhs rhs out",
    "k_grouped_wgrad_gemm_fp8_fp8_fp32_nt": "lhs rhs out batch_sizes",
    "gemm_fp8_fp8_bf16_nt": "lhs rhs out",
    "m_grouped_gemm_fp8_fp8_bf16_nt_contiguous": "lhs rhs out m_indices",
    "m_grouped_gemm_fp8_fp8_bf16_nt_masked": "lhs rhs out masked_m expected_m",
}
SCALED = "a b a_scale b_scale"
FLASHINFER = {
    "mm_bf16": "a b bias pdl out out_dtype backend",
    "bmm_fp8": "A B A_scale B_scale dtype out backend",
    "gemm_fp8_nt_groupwise": f"{SCALED} scale_major_mode mma_sm scale_granularity_mnk out out_dtype backend",
    "group_deepgemm_fp8_nt_groupwise": f"{SCALED} m_indices scale_granularity_mnk out out_dtype",
    "batch_deepgemm_fp8_nt_groupwise": f"{SCALED} masked_m expected_m scale_granularity_mnk out out_dtype",
}


@pytest.mark.parametrize(
    ("module", "name", "names"),
    [(deep_gemm, *one) for one in DEEP_GEMM.items()] + [(gemm, *one) for one in FLASHINFER.items()],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_arguments_are_those_of_the_original(module, name, names):
    """By position, too."""
    parameters = inspect.signature(getattr(module, name)).parameters.values()
    assert " ".join(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == names


def test_first_names():
    a, a_scale, a_wide = scaled(7, 200, rows=1)
    b, b_scale, b_wide = scaled(2, 130, 200, rows=128)
    d, indices = torch.empty(7, 130).bfloat16(), torch.tensor([0, 0, 0, 1, 1, 1, 1]).int()
    deep_gemm.gemm_fp8_fp8_bf16_nt((a, a_scale), (b[1], b_scale[1]), d)
    exact(d, (a_wide @ b_wide[1].T).bfloat16().float())
    deep_gemm.m_grouped_gemm_fp8_fp8_bf16_nt_contiguous((a, a_scale), (b, b_scale), d, indices)
    whole = torch.cat([a_wide[:3] @ b_wide[0].T, a_wide[3:] @ b_wide[1].T])
    exact(d, whole.bfloat16().float())
    many, out = (a[None].repeat(2, 1, 1), a_scale[None].repeat(2, 1, 1)), torch.empty(2, 7, 130)
    counts = torch.tensor([7, 0], dtype=torch.int32)
    deep_gemm.m_grouped_gemm_fp8_fp8_bf16_nt_masked(many, (b, b_scale), out, counts, 7)
    exact(out[0], a_wide @ b_wide[0].T)


def test_batches_of_8_bits():
    a, b = torch.randint(-2, 3, (3, 7, 20)).to(E4M3), torch.randint(-2, 3, (3, 5, 20)).to(E4M3)
    half, four = torch.tensor([0.5]), torch.tensor([4.0])
    found = gemm.bmm_fp8(a, b.transpose(1, 2), half, four, torch.float32)
    exact(found, 2 * a.float() @ b.float().transpose(1, 2))


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
