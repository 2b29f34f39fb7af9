# SPDX-License-Identifier: Apache-2.0
"""softmax in Triton: tiles of whole rows, or any dimension in two passes with a maximum that is kept up to date."""

import triton
import triton.language as tl

LONGEST_TILE = 16384  # elements of a row held in registers


@triton.jit
def _rows(x, out, rows, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS whole rows, contiguous; read once."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    n = tl.arange(0, BLOCK)[None, :]
    here = (r < rows) & (n < N)
    v = tl.load(x + r * N + n, here, float("-inf")).to(tl.float32)
    power = tl.where(n < N, tl.exp(v - tl.max(v, 1)[:, None]), 0.0)
    found = power / tl.sum(power, 1)[:, None]
    tl.store(out + r * N + n, found.to(out.dtype.element_ty), here)


@triton.jit
def _columns(x, out, N, inner, BLOCK: tl.constexpr, INNER: tl.constexpr):
    """One outer index and INNER columns of stride 1; x is read twice."""
    at = tl.program_id(0).to(tl.int64) * N * inner
    i = tl.program_id(1) * INNER + tl.arange(0, INNER)[None, :]
    x += at + i
    out += at + i
    largest = tl.full((1, INNER), float("-inf"), tl.float32)
    total = tl.zeros((1, INNER), tl.float32)
    for first in range(0, N, BLOCK):
        n = first + tl.arange(0, BLOCK)[:, None]
        here = (n < N) & (i < inner)
        v = tl.load(x + n.to(tl.int64) * inner, here, float("-inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(v, 0)[None, :])
        # Not exp where both are -inf, which would be NaN: what comes later may be finite.
        total *= tl.where(new == largest, 1.0, tl.exp(largest - new))
        total += tl.sum(tl.where(v == float("-inf"), 0.0, tl.exp(v - new)), 0)[None, :]
        largest = new
    for first in range(0, N, BLOCK):
        n = first + tl.arange(0, BLOCK)[:, None]
        here = (n < N) & (i < inner)
        v = tl.load(x + n.to(tl.int64) * inner, here, 0.0).to(tl.float32)
        found = tl.exp(v - largest) / total
        tl.store(out + n.to(tl.int64) * inner, found.to(out.dtype.element_ty), here)


@triton.jit(do_not_specialize=["outer"])
def _softmax(
    x, out, outer, N, inner, WHOLE: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Either of the two."""
    if WHOLE:
        _rows(x, out, outer, N, ROWS, BLOCK)
    else:
        _columns(x, out, N, inner, BLOCK, INNER)


def softmax(x, dim, *, out):
    """Writes out; torch's tensors, contiguous."""
    if x.numel() == 0:
        return
    shape = x.shape or (1,)
    dim %= len(shape)
    N = shape[dim]
    inner = shape[dim + 1 :].numel() if x.shape else 1
    outer = x.numel() // (N * inner)
    if inner == 1 and N <= LONGEST_TILE:
        block = 1 << (N - 1).bit_length()
        tile_rows = max(1, min(2048 // block, 32))
        warps = min(max(block * tile_rows // 512, 1), 16)
        grid, tile = ((outer + tile_rows - 1) // tile_rows,), (True, 1, block, tile_rows)
    else:
        width = min(1 << (inner - 1).bit_length(), 64)
        block, warps = min(1 << (N - 1).bit_length(), 4096 // width), 8
        grid, tile = (outer, (inner + width - 1) // width), (False, width, block, 1)
    _softmax[grid](x, out, outer, N, inner, *tile, num_warps=warps)
