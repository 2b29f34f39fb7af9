# SPDX-License-Identifier: Apache-2.0
"""batch_norm_reduce in float64; masked rows at odd bits in both orders of channels."""

import anyop
import numpy as np
import pytest


def masked(grad_out, mask):
    if mask is None:
        return grad_out
    bits = np.unpackbits(mask.astype(np.uint8), count=grad_out.size, bitorder="little")
    return np.where(bits.reshape(grad_out.shape) == 1, grad_out, 0)


def reference(grad_out, x, mean, rstd, weight, mask):
    N, C = x.shape[:2]
    with np.errstate(all="ignore"):
        d = masked(grad_out, mask).reshape(N, C, -1)
        far = x.reshape(N, C, -1) - mean[:, None]
        sum_dy, sum_dy_xmu = d.sum((0, 2)), (d * far).sum((0, 2))
        return sum_dy, sum_dy_xmu, sum_dy_xmu * rstd, sum_dy


@pytest.mark.parametrize(
    "shape", [(3, 5, 7, 11), (2, 3, 1027), (700, 33), (3, 1100, 2), (1, 1, 2100)]
)
def test_masks_of_both_orders(shape):
    random = np.random.default_rng(0)
    grad_out, x = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
    mean, rstd = (random.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
    bits = random.integers(0, 2, shape)
    mask, of_last = (
        np.packbits(b.ravel(), bitorder="little") for b in (bits, np.moveaxis(bits, 1, -1))
    )
    exact = reference(grad_out.astype(float), x.astype(float), mean, rstd, None, mask)
    found = anyop.batch_norm_reduce(grad_out, x, mean, rstd, mask=mask)
    given = (np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (grad_out, x))
    other = anyop.batch_norm_reduce_channels_last(*given, mean, rstd, mask=of_last)
    for results in (found, other):
        for one, expected in zip(results, exact, strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)
