# SPDX-License-Identifier: Apache-2.0
"""batch_norm_backward_channels_last in float64; more in batch_norm_backward_test.py."""

import numpy as np


def reference(grad_out, x, mean, rstd, weight, mask, sum_dy, sum_dy_xmu, count):
    d = grad_out
    if mask is not None:
        bits = np.unpackbits(mask.astype(np.uint8), count=d.size, bitorder="little")
        d = np.where(bits.reshape(d.shape) == 1, d, 0)
    total = 0 if count is None else count.sum()
    share = 1 / total if total > 0 else 0
    with np.errstate(all="ignore"):
        a = rstd * (1 if weight is None else weight)
        less = a * share * (0 if sum_dy is None else sum_dy)
        slope = a * share * rstd**2 * (0 if sum_dy_xmu is None else sum_dy_xmu)
        return a * d - less - slope * (x - mean), d
