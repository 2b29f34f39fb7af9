# SPDX-License-Identifier: Apache-2.0
"""batch_norm_reduce_channels_last in float64; more in batch_norm_reduce_test.py."""

import numpy as np


def reference(grad_out, x, mean, rstd, weight, mask):
    d = grad_out
    if mask is not None:
        bits = np.unpackbits(mask.astype(np.uint8), count=d.size, bitorder="little")
        d = np.where(bits.reshape(d.shape) == 1, d, 0)
    with np.errstate(all="ignore"):
        sums = [v.reshape(-1, x.shape[-1]).sum(0) for v in (d, d * (x - mean))]
        return *sums, sums[1] * rstd, sums[0]
