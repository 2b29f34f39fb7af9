# SPDX-License-Identifier: Apache-2.0
"""native_rms_norm in float64: the result, and the reciprocal of the root mean square."""

import numpy as np


def reference(x, weight, eps, weight_offset, dtype=None):
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    if not x.shape[-1]:
        rstd = np.full_like(rstd, 1 / np.sqrt(eps))
    return x * rstd * ((1 if weight is None else weight) + weight_offset), rstd
