# SPDX-License-Identifier: Apache-2.0
"""gelu in Triton, exact or by tanh, of contiguous tensors."""

import triton
import triton.language as tl


@triton.jit
def _gelu(x, out, count, BLOCK: tl.constexpr, BY_TANH: tl.constexpr):
    """BLOCK results, computed in float32."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    v = tl.load(x + at, here).to(tl.float32)
    if BY_TANH:
        # (1 + tanh(u)) / 2 is 1 - 1 / (exp(2 u) + 1), which neither overflows nor needs a library.
        found = v * (1.0 - 1.0 / (tl.exp(1.5957691216057308 * (v + 0.044715 * v * v * v)) + 1.0))
    else:
        found = v * (0.5 + 0.5 * tl.erf(v * 0.7071067811865476))
    tl.store(out + at, found.to(out.dtype.element_ty), here)


def gelu(x, approximate, *, out):
    """Writes out; torch's tensors. One that is not contiguous is copied first."""
    x, place = x.contiguous(), out.contiguous()
    if out.numel():
        _gelu[((out.numel() + 2047) // 2048,)](
            x, place, out.numel(), 2048, approximate == "tanh", num_warps=8
        )
    if place is not out:
        out.copy_(place)
