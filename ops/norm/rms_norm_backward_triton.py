# SPDX-License-Identifier: Apache-2.0
"""rms_norm_backward in Triton: each program walks its share of rows, then the shares' sums over rows are added up."""

import torch
import triton
import triton.language as tl

PROGRAMS = 264  # two for each multiprocessor of an H200; constant, so that sums have the same bits everywhere


@triton.jit
def _rms_norm_backward(
    grad, x, weight, grad_x, sums, rows, D, grad_stride, x_stride, grad_x_stride, eps, weight_offset,
    BLOCK: tl.constexpr, HAS_WEIGHT: tl.constexpr, WANTS_X: tl.constexpr, WANTS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Rows p, p + programs, ...; a whole row, and the sum of its column's terms, in registers. Sums are float32."""
    p, programs = tl.program_id(0), tl.num_programs(0)
    d = tl.arange(0, BLOCK)
    here = d < D
    if HAS_WEIGHT:
        w = tl.load(weight + d, here, 0.0).to(tl.float32) + weight_offset
    else:
        w = 1.0 + weight_offset
    total = tl.zeros((BLOCK,), tl.float32)
    for r in range(p, rows, programs):
        row = tl.cast(r, tl.int64)
        v = tl.load(x + row * x_stride + d, here, 0.0).to(tl.float32)
        g = tl.load(grad + row * grad_stride + d, here, 0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(v * v, 0) / D + eps)
        normal = v * scale
        if WANTS_X:
            product = g * w
            found = scale * (product - normal * (tl.sum(product * normal, 0) / D))
            tl.store(grad_x + row * grad_x_stride + d, found.to(grad_x.dtype.element_ty), here)
        if WANTS_WEIGHT:
            total += g * normal
    if WANTS_WEIGHT:
        tl.store(sums + p.to(tl.int64) * D + d, total, here)


@triton.jit
def _add_up(sums, out, count, D, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK columns of the shares' sums, in the order of the shares and in float64: they may cancel."""
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((COUNT, BLOCK), tl.float64)
    for first in range(0, count, COUNT):
        p = first + tl.arange(0, COUNT)[:, None]
        total += tl.load(sums + p.to(tl.int64) * D + d, (p < count) & (d < D), 0.0)
    column = tl.sum(total, 0)[None, :].to(tl.float32)
    tl.store(out + d, column.to(out.dtype.element_ty), d < D)


def rms_norm_backward(grad_out, x, weight, eps, weight_offset, *, grad_x, grad_weight):
    """Writes those of grad_x and grad_weight that are not None; torch's tensors, weight may be None."""
    D = x.shape[-1]
    if x.numel() == 0:
        if grad_weight is not None:
            grad_weight.zero_()
        return
    grad_out, x = grad_out.reshape(-1, D), x.reshape(-1, D)
    rows = x.shape[0]
    place = x if grad_x is None else grad_x.reshape(-1, D)
    programs = min(rows, PROGRAMS)
    sums = torch.empty(
        (programs, D) if grad_weight is not None else 0, dtype=torch.float32, device=x.device
    )
    block = 1 << (D - 1).bit_length()
    _rms_norm_backward[(programs,)](
        grad_out, x, x if weight is None else weight, place, sums, rows, D, grad_out.stride(0), x.stride(0),
        place.stride(0), eps, weight_offset, block, weight is not None, grad_x is not None, grad_weight is not None,
        num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    if grad_x is not None and place.data_ptr() != grad_x.data_ptr():
        grad_x.copy_(place.view_as(grad_x))
    if grad_weight is not None:
        _add_up[((D + 63) // 64,)](sums, grad_weight, programs, D, 16, 64, num_warps=2)
