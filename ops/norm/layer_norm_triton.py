# SPDX-License-Identifier: Apache-2.0
"""layer_norm in Triton: a tile of whole rows in registers, or a long row read three times, twice from the cache."""

import triton
import triton.language as tl

LONGEST_TILE = 16384  # elements of a row held in registers


@triton.jit
def _scaled(
    normal, weight, bias, weight_offset, d, D, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr
):
    if HAS_WEIGHT:
        normal *= tl.load(weight + d, d < D, 0.0).to(tl.float32) + weight_offset
    else:
        normal *= 1.0 + weight_offset
    if HAS_BIAS:
        normal += tl.load(bias + d, d < D, 0.0).to(tl.float32)
    return normal


@triton.jit(do_not_specialize=["rows"])
def _layer_norm(
    x, weight, bias, out, rows, D, x_stride, out_stride, eps, weight_offset, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """ROWS rows; sums are float32, the variance is that of the differences from the mean."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    x += r * x_stride
    out += r * out_stride
    if WHOLE:
        here = (r < rows) & (d < D)
        v = tl.load(x + d, here, 0.0).to(tl.float32)
        apart = tl.where(d < D, v - (tl.sum(v, 1) / D)[:, None], 0.0)
        normal = apart * tl.rsqrt(tl.sum(apart * apart, 1) / D + eps)[:, None]
        found = _scaled(normal, weight, bias, weight_offset, d, D, HAS_WEIGHT, HAS_BIAS)
        tl.store(out + d, found.to(out.dtype.element_ty), here)
    else:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for first in range(0, D, BLOCK):
            here = (r < rows) & (first + d < D)
            total += tl.load(x + first + d, here, 0.0, eviction_policy="evict_last").to(tl.float32)
        mean = (tl.sum(total, 1) / D)[:, None]
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for first in range(0, D, BLOCK):
            here = (r < rows) & (first + d < D)
            v = tl.load(x + first + d, here, 0.0, eviction_policy="evict_last").to(tl.float32)
            apart = tl.where(first + d < D, v - mean, 0.0)
            total += apart * apart
        scale = tl.rsqrt(tl.sum(total, 1) / D + eps)[:, None]
        for first in range(0, D, BLOCK):
            here = (r < rows) & (first + d < D)
            v = tl.load(x + first + d, here, 0.0, eviction_policy="evict_first").to(tl.float32)
            normal = (v - mean) * scale
            found = _scaled(normal, weight, bias, weight_offset, first + d, D, HAS_WEIGHT, HAS_BIAS)
            tl.store(out + first + d, found.to(out.dtype.element_ty), here)


def layer_norm(x, weight, bias, eps, weight_offset, dtype, *, out):
    """Writes out; torch's tensors, weight and bias may be None."""
    if out.numel() == 0:
        return
    D = x.shape[-1]
    x = x if x.ndim == 2 else x.reshape(-1, D)
    place = out if out.ndim == 2 else out.reshape(-1, D)
    rows = x.shape[0]
    whole = D <= LONGEST_TILE
    block = 1 << (D - 1).bit_length() if whole else 4096
    tile_rows = max(1, min(2048 // block, 32))
    warps = min(max(block * tile_rows // 512, 1), 16)
    _layer_norm[((rows + tile_rows - 1) // tile_rows,)](
        x, x if weight is None else weight, x if bias is None else bias, place, rows, D, x.stride(0),
        place.stride(0), eps, weight_offset, tile_rows, block, whole, weight is not None, bias is not None,
        num_warps=warps,
    )  # fmt: skip
    if place.data_ptr() != out.data_ptr():  # its leading dimensions are not one: a copy
        out.copy_(place.view_as(out))
