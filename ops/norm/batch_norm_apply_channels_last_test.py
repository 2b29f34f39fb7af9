# SPDX-License-Identifier: Apache-2.0
"""batch_norm_apply_channels_last in float64; more in batch_norm_apply_test.py."""

import numpy as np


def reference(x, mean, rstd, weight, bias, residual, relu):
    with np.errstate(all="ignore"):
        z = (x - mean) * rstd * (1 if weight is None else weight) + (0 if bias is None else bias)
        z = z if residual is None else z + residual
        mask = np.packbits(~(z.ravel() <= 0), bitorder="little")
        return np.where(z <= 0, 0, z) if relu else z, mask
