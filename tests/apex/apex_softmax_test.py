# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's softmaxes by Apex's formulas, to the tolerances of its tests: torch's own defaults."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.apex import extensions  # noqa: E402
from anyop.torch.apex.extensions import (  # noqa: E402
    generic_scaled_masked_softmax_cuda,
    scaled_masked_softmax_cuda,
    scaled_softmax_cuda,
    scaled_upper_triang_masked_softmax_cuda,
)
from anyop.torch.apex.transformer import AttnMaskType  # noqa: E402
from anyop.torch.apex.transformer.functional import (  # noqa: E402
    FusedScaleMaskSoftmax,
    GenericFusedScaleMaskSoftmax,
    fused_softmax,
)

HALF = (torch.float16, torch.bfloat16)


def mask_func(scores, mask):
    return scores.masked_fill(mask, -10000.0)


def modules(dtype, kind=AttnMaskType.padding, scale=None, softmax_in_fp32=True):
    """The fused module and the one that is not."""
    given = {
        "input_in_fp16": dtype is torch.float16, "input_in_bf16": dtype is torch.bfloat16,
        "mask_func": mask_func, "scale": scale, "softmax_in_fp32": softmax_in_fp32,
        "attn_mask_type": kind,
    }  # fmt: skip
    return [FusedScaleMaskSoftmax(**given, scaled_masked_softmax_fusion=f) for f in (True, False)]


def masks(kind, size):
    if kind is AttnMaskType.causal:
        return torch.ones(4, 1, size, size).triu(1).bool()
    return torch.randint(0, 2, (4, 1, size, size)).bool()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("kind", list(AttnMaskType))
@pytest.mark.parametrize("scale", [None, 2.0])
def test_fused_as_not_fused(dtype, kind, scale):
    fused, plain = modules(dtype, kind, scale)
    x, mask = torch.randn(4, 12, 24, 24, dtype=dtype, requires_grad=True), masks(kind, 24)
    assert fused.is_kernel_available(mask, *x.shape) and not plain.is_kernel_available(
        mask, *x.shape
    )
    found, expected = fused(x, mask), plain(x, mask)
    assert found.dtype is expected.dtype is dtype
    torch.testing.assert_close(found, expected)
    g = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(y, x, g)[0] for y in (found, expected))
    # The gradient is made from the result, which is rounded; that of torch from one which is not.
    torch.testing.assert_close(
        ours, theirs, rtol=1.6e-2, atol=4 * torch.finfo(dtype).eps * (scale or 1)
    )


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("kind", list(AttnMaskType))
def test_autocast(dtype, kind):
    fused, plain = modules(dtype, kind, softmax_in_fp32=False)
    x, mask = torch.randn(4, 12, 24, 24), masks(kind, 24)
    with torch.autocast("cpu", dtype=dtype):
        found = fused(x, mask)
    assert found.dtype is dtype
    torch.testing.assert_close(found, plain(x.to(dtype), mask))


def test_where_nothing_is_fused():
    """Apex's own conditions: there the mask function decides."""
    fused, plain = modules(torch.float16)
    for shape in [(4, 12, 24, 16), (4, 12, 23, 24), (1, 3, 24, 24), (4, 4, 4, 16388)]:
        assert not fused.is_kernel_available(None, *shape)
    assert not modules(torch.float32)[0].is_kernel_available(None, 4, 12, 24, 24)
    x, mask = torch.randn(1, 3, 5, 7, dtype=torch.float16), torch.ones(1, 1, 5, 7).bool()
    torch.testing.assert_close(fused(x, mask), plain(x, mask))
    generic = GenericFusedScaleMaskSoftmax(True, False, True, mask_func, True, None)
    assert not generic(x, mask).any()  # and in the fused one rows that are left out whole are 0


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_functions_and_extensions(dtype):
    x = torch.randn(4, 3, 20, 33, dtype=dtype)
    mask = torch.rand(4, 1, 20, 33) < 0.5
    mask[1, 0, 3] = True
    wide = (x.float() * 0.5).masked_fill(mask, -10000.0).softmax(-1)
    expected = wide.masked_fill(mask.all(-1, keepdim=True), 0.0).to(dtype)
    scale = torch.tensor(0.5)  # as Apex's own functions pass it
    for raw in (scaled_masked_softmax_cuda, generic_scaled_masked_softmax_cuda):
        torch.testing.assert_close(raw.forward(x, mask.byte(), scale), expected)
    torch.testing.assert_close(fused_softmax.scaled_masked_softmax(x, mask, 0.5), expected)
    plain = (x.float() * 0.5).softmax(-1).to(dtype)
    torch.testing.assert_close(scaled_softmax_cuda.forward(x, scale), plain)
    torch.testing.assert_close(fused_softmax.scaled_masked_softmax(x, None, 0.5), plain)
    square = x[..., :20].reshape(12, 20, 20)
    later = torch.ones(20, 20).triu(1).bool()
    causal = (square.float() * 0.5).masked_fill(later, -torch.inf).softmax(-1).to(dtype)
    found = scaled_upper_triang_masked_softmax_cuda.forward(square, scale)
    torch.testing.assert_close(found, causal)
    g = torch.randn_like(x)
    slope = (plain.float() * (g - (g * plain).float().sum(-1, keepdim=True)) * 0.5).to(dtype)
    torch.testing.assert_close(
        scaled_softmax_cuda.backward(g, plain, scale), slope, rtol=1.6e-2, atol=2e-3
    )
    g = torch.randn_like(square)
    slope = (causal.float() * (g - (g * causal).float().sum(-1, keepdim=True)) * 0.5).to(dtype)
    found = scaled_upper_triang_masked_softmax_cuda.backward(g, causal, scale)
    torch.testing.assert_close(found, slope, rtol=1.6e-2, atol=2e-3)
    functions = fused_softmax.ScaledMaskedSoftmax, fused_softmax.GenericScaledMaskedSoftmax
    for function in functions:
        torch.testing.assert_close(function.apply(x, mask, 0.5), expected)


def test_what_apex_refuses():
    with pytest.raises(RuntimeError, match="cannot be active at the same time"):
        FusedScaleMaskSoftmax(True, True, AttnMaskType.padding, True, mask_func, True, None)
    with pytest.raises(RuntimeError, match="fp32 when scaled"):
        modules(torch.float16, scale=2.0, softmax_in_fp32=False)
    with pytest.raises(ValueError, match="Invalid attn_mask_type"):
        modules(torch.float16, kind=3)
    with pytest.raises(AssertionError, match="self attention"):
        fused_softmax.scaled_upper_triang_masked_softmax(torch.zeros(1, 1, 4, 8), None, 1.0)
    with pytest.raises(AssertionError, match="3 dimensions"):
        modules(torch.float16)[0](torch.zeros(4, 4, 4), None)
    with pytest.raises(RuntimeError, match="4D"):
        extensions.scaled_softmax_cuda.forward(torch.zeros(4, 4, 4), 1.0)


def test_rows_of_a_block():
    """As Apex's kernel: 128 threads, 32 or fewer for a row, two short rows for a warp."""
    lengths = {1: 256, 2: 128, 16: 16, 17: 8, 32: 8, 128: 8, 129: 4, 2048: 4}
    for sk, rows in lengths.items():
        assert scaled_masked_softmax_cuda.get_batch_per_block(4, sk, 1, 1) == rows


@pytest.mark.parametrize("kind", list(AttnMaskType))
def test_compiled(kind):
    fused = modules(torch.bfloat16, kind)[0]
    x = torch.randn(4, 2, 24, 24, dtype=torch.bfloat16, requires_grad=True)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    mask = masks(kind, 24)
    for given in (x, x.float()):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = compiled(given, mask), fused(given, mask)
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(compiled(x, mask), expected)
