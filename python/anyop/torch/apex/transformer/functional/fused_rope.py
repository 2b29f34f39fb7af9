# SPDX-License-Identifier: Apache-2.0
"""apex.transformer.functional.fused_rope: rotary embeddings in the layouts sbhd, thd and of images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.calls import applied, check, exporting

Rotation = Callable[..., Tensor]  # anyop.rope, or anyop.rope_backward


def _standard(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None, *_: object
) -> Tensor:
    """anyop.rope by torch's operators: what an exported graph holds."""
    size = cos.shape[1]
    rows = slice(x.shape[-3]) if positions is None else positions.long()
    c, s = (table[rows].unsqueeze(-2).to(x.dtype) for table in (cos, sin))
    turned, rest = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, -1)
    return torch.cat((turned * c + torch.cat((-second, first), -1) * s, rest), -1)


def _forward() -> Rotation:
    return _standard if exporting() else anyop.rope


def _rows(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 else t.contiguous()


def _check_sbhd(t: Tensor, *tables: Tensor) -> None:
    check(t.dim() == 4, "expected 4D tensor")
    for table in tables:
        check(table.dim() == 4, "expected 4D tensor")
        check(
            table.shape[0] == t.shape[0],
            "expected input and freqs, or cos and sin, with the same sequence length",
        )
        check(
            tuple(table.shape[1:3]) == (1, 1),
            "expected the second and third dims of freqs, or cos and sin, to be 1",
        )


def rotate_sbhd(
    rotate: Rotation, t: Tensor, cos: Tensor, sin: Tensor, transpose_output_memory: bool
) -> Tensor:
    """Turn t (s, b, h, d). The memory of the result is contiguous so, or as (b, s, h, d)."""
    _check_sbhd(t, cos, sin)
    cos, sin = cos.flatten(0, 2), sin.flatten(0, 2)
    if transpose_output_memory:
        return rotate(_rows(t.transpose(0, 1)), cos, sin).transpose(0, 1)
    places = torch.arange(t.shape[0], device=t.device).unsqueeze(1)
    return rotate(_rows(t), cos, sin, places)


def rotate_thd(rotate: Rotation, t: Tensor, cu_seqlens: Tensor, freqs: Tensor) -> Tensor:
    """Turn t (t, h, d): sequences one behind the other; freqs (longest, 1, 1, d)."""
    check(t.dim() == 3, "expected 3D tensor")
    check(cu_seqlens.dim() == 1, "expected 1D tensor")
    check(freqs.dim() == 4, "expected 4D tensor")
    angles = freqs.flatten(0, 2)
    return rotate(_rows(t), angles.cos(), angles.sin(), None, cu_seqlens.int())


def rotate_2d(
    rotate: Rotation, t: Tensor, img_h: int, img_w: int, *tables: Tensor
) -> Tensor:  # fmt: skip
    """Turn t (b, s, h, d) by cos_h, sin_h, cos_w, sin_w (1, H, 1, d // 2): halves of a head are taken as two tokens."""
    check(t.dim() == 4, "expected 4D tensor")
    for table in tables:
        check(table.dim() == 4, "expected 4D tensor")
    cos_h, sin_h, cos_w, sin_w = (table.flatten(0, 2) for table in tables)
    check(
        cos_h.shape[0] >= img_h and cos_w.shape[0] >= img_w,
        f"expected tables of at least {img_h} rows and {img_w} columns, found {cos_h.shape[0]} "
        f"and {cos_w.shape[0]}",
    )
    place = torch.arange(img_h * img_w, device=t.device)
    rows = torch.stack([place // img_w, place % img_w + cos_h.shape[0]], -1).unsqueeze(1)
    halves = _rows(t).unflatten(-1, (2, -1)).unsqueeze(-2)  # (b, s, h, 2, 1, d / 2)
    both = torch.cat([cos_h, cos_w]), torch.cat([sin_h, sin_w])
    return rotate(halves, *both, rows).flatten(-3)


def fused_apply_rotary_pos_emb(
    t: Tensor, freqs: Tensor, transpose_output_memory: bool = False
) -> Tensor:
    """Turn t (s, b, h, d) by freqs (s, 1, 1, d2), float32, d2 <= d.

    transpose_output_memory: the result's memory is contiguous as (b, s, h, d).
    """
    return rotate_sbhd(_forward(), t, freqs.cos(), freqs.sin(), transpose_output_memory)


def fused_apply_rotary_pos_emb_cached(
    t: Tensor, cos_: Tensor, sin_: Tensor, transpose_output_memory: bool = False
) -> Tensor:
    """Turn t (s, b, h, d) by cosines and sines (s, 1, 1, d2), float32 or t's dtype."""
    return rotate_sbhd(_forward(), t, cos_, sin_, transpose_output_memory)


def fused_apply_rotary_pos_emb_thd(t: Tensor, cu_seqlens: Tensor, freqs: Tensor) -> Tensor:
    """Turn t (t, h, d), sequence n from cu_seqlens[n] to cu_seqlens[n + 1]; freqs (longest, 1, 1, d2)."""
    return rotate_thd(anyop.rope, t, cu_seqlens, freqs)


def fused_apply_rotary_pos_emb_2d(
    t: Tensor, img_h: int, img_w: int, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor
) -> Tensor:
    """Turn half of each head of t (b, img_h * img_w, h, d) by its pixel's row, half by its column.

    cos_h, sin_h, cos_w, sin_w: (1, rows or columns at least, 1, d // 2), float32 or t's dtype.
    """
    assert t.size(1) == img_h * img_w, "The sequence length should be equal to img_h * img_w"
    assert cos_h.size() == sin_h.size(), "The shape of cos_h and sin_h should be the same"
    assert cos_w.size() == sin_w.size(), "The shape of cos_w and sin_w should be the same"
    return rotate_2d(_forward(), t, img_h, img_w, cos_h, sin_h, cos_w, sin_w)


FusedRoPEFunc = applied("FusedRoPEFunc", fused_apply_rotary_pos_emb, __name__)
FusedRoPECachedFunc = applied("FusedRoPECachedFunc", fused_apply_rotary_pos_emb_cached, __name__)
FusedRoPETHDFunc = applied("FusedRoPETHDFunc", fused_apply_rotary_pos_emb_thd, __name__)
FusedRoPE2DFunc = applied("FusedRoPE2DFunc", fused_apply_rotary_pos_emb_2d, __name__)
