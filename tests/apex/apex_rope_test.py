# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's rotary embeddings by Apex's formulas, to the tolerances of its tests: torch's own defaults.

The formulas are evaluated in float32, and rounded once, as here; Apex's kernels round each product.
"""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.apex.extensions import fused_rotary_positional_embedding as raw  # noqa: E402
from anyop.torch.apex.transformer import functional  # noqa: E402

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def turned(t, cos, sin):
    """Angles that differ within a pair, as those of Apex's tests do."""
    x, size = t.float(), cos.shape[-1]
    first, second = x[..., :size].chunk(2, -1)
    found = x[..., :size] * cos.float() + torch.cat((-second, first), -1) * sin.float()
    return torch.cat((found, x[..., size:]), -1).to(t.dtype)


def compare(found, expected, *inputs):
    """Results and gradients; the loss's gradient is one number everywhere, expanded."""
    torch.testing.assert_close(found, expected)
    ours, theirs = (
        torch.autograd.grad(y.sum() * 2, inputs, retain_graph=True) for y in (found, expected)
    )
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("swapped", [None, (0, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_sbhd(dtype, swapped, transposed):
    for width, cached in itertools.product((16, 32), (False, True)):
        t = torch.rand(24, 2, 5, 32, dtype=dtype)
        if swapped:
            t = t.transpose(*swapped).contiguous().transpose(*swapped)
        t.requires_grad_()
        freqs = torch.rand(24, 1, 1, width)
        cos, sin = freqs.cos(), freqs.sin()
        if cached:
            call = functional.fused_apply_rotary_pos_emb_cached
            found = call(t, cos, sin, transpose_output_memory=transposed)
        else:
            found = functional.fused_apply_rotary_pos_emb(t, freqs, transposed)
        assert found.transpose(0, 1).is_contiguous() is transposed
        assert found.is_contiguous() is not transposed
        compare(found, turned(t, cos, sin), t)
        g = torch.rand_like(found)
        expected = torch.autograd.grad(turned(t, cos, sin), t, g)[0]
        torch.testing.assert_close(raw.backward(g, freqs, transposed), expected)
        torch.testing.assert_close(raw.backward_cached(g, cos, sin, transposed), expected)
        assert not raw.forward(t, freqs, transposed).requires_grad


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_thd(dtype):
    ends = torch.tensor([0, 9, 13, 13, 40], dtype=torch.int32)
    for swapped, width in itertools.product((False, True), (8, 16)):
        t = torch.rand(40, 3, 16, dtype=dtype)
        t = t.transpose(1, 2).contiguous().transpose(1, 2) if swapped else t
        t.requires_grad_()
        freqs = torch.rand(40, 1, 1, width)
        parts = t.split((ends[1:] - ends[:-1]).tolist())
        angles = freqs.squeeze(1)
        each = [turned(p, angles[: len(p)].cos(), angles[: len(p)].sin()) for p in parts]
        expected = torch.cat(each)
        compare(functional.fused_apply_rotary_pos_emb_thd(t, ends, freqs), expected, t)
        torch.testing.assert_close(raw.forward_thd(t, ends, freqs), expected.detach())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("margin", [0, 3])
def test_images(dtype, margin):
    rows, columns, width = 4, 6, 16
    for swapped in (None, (0, 1), (2, 3)):
        t = torch.rand(2, rows * columns, 3, width, dtype=dtype)
        t = t.transpose(*swapped).contiguous().transpose(*swapped) if swapped else t
        t.requires_grad_()
        h, w = (torch.rand(1, n + margin, 1, width // 2) for n in (rows, columns))
        tables = [f(x).to(dtype) for x in (h, w) for f in (torch.cos, torch.sin)]
        cos_h, sin_h, cos_w, sin_w = tables
        image = t.unflatten(1, (rows, columns))
        upper, lower = image.chunk(2, -1)
        upper = turned(upper, cos_h[:, :rows].unsqueeze(2), sin_h[:, :rows].unsqueeze(2))
        lower = turned(lower, cos_w[:, :columns].unsqueeze(1), sin_w[:, :columns].unsqueeze(1))
        expected = torch.cat((upper, lower), -1).flatten(1, 2)
        compare(functional.fused_apply_rotary_pos_emb_2d(t, rows, columns, *tables), expected, t)
        torch.testing.assert_close(raw.forward_2d(image, *tables), expected.detach())
        g = torch.rand_like(expected)
        found = raw.backward_2d(g.unflatten(1, (rows, columns)), *tables)
        torch.testing.assert_close(found, torch.autograd.grad(expected, t, g)[0])


def test_what_apex_refuses():
    t, freqs = torch.rand(4, 1, 1, 8), torch.rand(5, 1, 1, 8)
    with pytest.raises(RuntimeError, match="same sequence length"):
        functional.fused_apply_rotary_pos_emb(t, freqs)
    with pytest.raises(RuntimeError, match="4D"):
        functional.fused_apply_rotary_pos_emb(t[0], freqs)
    with pytest.raises(RuntimeError, match="to be 1"):
        functional.fused_apply_rotary_pos_emb(t, torch.rand(4, 2, 1, 8))
    with pytest.raises(AssertionError, match="img_h"):
        functional.fused_apply_rotary_pos_emb_2d(t, 2, 3, *[freqs] * 4)
    with pytest.raises(ValueError, match="even"):
        functional.fused_apply_rotary_pos_emb(t, torch.rand(4, 1, 1, 3))


@pytest.mark.parametrize("transposed", [False, True])
def test_compiled(transposed):
    def run(t, freqs):
        return functional.fused_apply_rotary_pos_emb(t, freqs, transposed)

    t, freqs = torch.rand(6, 2, 3, 8, requires_grad=True), torch.rand(6, 1, 1, 8)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    compare(compiled(t, freqs), run(t, freqs), t)
