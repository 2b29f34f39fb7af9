# SPDX-License-Identifier: Apache-2.0
"""batch_norm_backward in float64; torch's gradients of batch norm, addition and ReLU in both orders of channels."""

import numpy as np
import pytest


def reference(grad_out, x, mean, rstd, weight, mask, sum_dy, sum_dy_xmu, count):
    def channel(values):
        return values.reshape(1, -1, *[1] * (x.ndim - 2))

    d = grad_out
    if mask is not None:
        bits = np.unpackbits(mask.astype(np.uint8), count=d.size, bitorder="little")
        d = np.where(bits.reshape(d.shape) == 1, d, 0)
    total = 0 if count is None else count.sum()
    share = 1 / total if total > 0 else 0
    zeros = np.zeros_like(mean)
    with np.errstate(all="ignore"):
        a = rstd * (1 if weight is None else weight)
        less = a * share * (zeros if sum_dy is None else sum_dy)
        slope = a * share * rstd**2 * (zeros if sum_dy_xmu is None else sum_dy_xmu)
        grad_x = channel(a) * d - channel(less) - channel(slope) * (x - channel(mean))
    return grad_x, d


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (9, 16), (3, 8, 16)])
def test_torchs_gradients(shape, dtype):
    torch = pytest.importorskip("torch")
    import anyop.torch

    dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    x, more = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(2))
    w, b = (torch.randn(shape[1], dtype=dtype, requires_grad=True) for _ in range(2))
    normal = torch.nn.functional.batch_norm(x, None, None, w, b, True)
    given = torch.randn(shape, dtype=dtype)
    expected = torch.autograd.grad((normal + more).relu(), (x, more, w, b), given)
    for last in ("", "_channels_last"):
        moved = [v.detach() for v in (x, more, given)]
        if last:
            moved = [v.movedim(1, -1).contiguous() for v in moved]
        stats = getattr(anyop, "batch_norm_stats" + last)(moved[0])
        counts = torch.tensor([x.numel() // shape[1]])
        mean, _, rstd = anyop.batch_norm_combine(stats[0][None], stats[1][None], counts)
        w_, b_ = w.detach(), b.detach()
        _, mask = getattr(anyop, "batch_norm_apply" + last)(
            moved[0], mean, rstd, w_, b_, moved[1], relu=True
        )
        call = moved[2], moved[0], mean, rstd, w_, mask
        *sums, grad_w, grad_b = getattr(anyop, "batch_norm_reduce" + last)(*call)
        grads = getattr(anyop, "batch_norm_backward" + last)(*call, *sums, counts)
        found = [v.movedim(-1, 1) if last else v for v in grads] + [grad_w, grad_b]
        for one, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(one, theirs)
