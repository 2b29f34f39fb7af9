# SPDX-License-Identifier: Apache-2.0
"""rms_norm in Triton: a tile of whole rows in registers, or a long row read twice, the second time from the cache."""

import triton
import triton.language as tl

LONGEST_TILE = 16384  # elements of a row held in registers


@triton.jit
def _factor(weight, weight_offset, d, D, HAS_WEIGHT: tl.constexpr):
    if HAS_WEIGHT:
        factor = tl.load(weight + d, d < D, 0.0).to(tl.float32) + weight_offset
    else:
        factor = 1.0 + weight_offset
    return factor


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x, weight, out, rows, D, x_stride, out_stride, eps, weight_offset, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """ROWS rows; sums are float32. Moves 2 elements for each one computed, 3 where a row is longer than BLOCK."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    x += r * x_stride
    out += r * out_stride
    if WHOLE:
        here = (r < rows) & (d < D)
        v = tl.load(x + d, here, 0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(v * v, 1) / D + eps)[:, None]
        w = _factor(weight, weight_offset, d, D, HAS_WEIGHT)
        tl.store(out + d, (v * scale * w).to(out.dtype.element_ty), here)
    else:
        squares = tl.zeros((ROWS, BLOCK), tl.float32)
        for first in range(0, D, BLOCK):
            here = (r < rows) & (first + d < D)
            v = tl.load(x + first + d, here, 0.0, eviction_policy="evict_last").to(tl.float32)
            squares += v * v
        scale = tl.rsqrt(tl.sum(squares, 1) / D + eps)[:, None]
        for first in range(0, D, BLOCK):
            here = (r < rows) & (first + d < D)
            v = tl.load(x + first + d, here, 0.0, eviction_policy="evict_first").to(tl.float32)
            w = _factor(weight, weight_offset, first + d, D, HAS_WEIGHT)
            tl.store(out + first + d, (v * scale * w).to(out.dtype.element_ty), here)


def rms_norm(x, weight, eps, weight_offset, dtype, *, out):
    """Writes out; torch's tensors, weight may be None."""
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
    _rms_norm[((rows + tile_rows - 1) // tile_rows,)](
        x, x if weight is None else weight, place, rows, D, x.stride(0), place.stride(0), eps, weight_offset,
        tile_rows, block, whole, weight is not None, num_warps=warps,
    )  # fmt: skip
    if place.data_ptr() != out.data_ptr():  # its leading dimensions are not one: a copy
        out.copy_(place.view_as(out))
