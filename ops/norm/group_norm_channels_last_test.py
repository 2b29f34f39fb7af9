# SPDX-License-Identifier: Apache-2.0
"""group_norm_channels_last in float64; more in group_norm_test.py."""

import numpy as np


def reference(x, groups, weight, bias, eps, activation):
    N, C = len(x), x.shape[-1]
    by_group = x.reshape(N, -1, groups, C // groups)
    with np.errstate(all="ignore"):
        count = max(by_group.shape[1] * by_group.shape[3], 1)
        mean = by_group.sum((1, 3), keepdims=True) / count
        rstd = 1 / np.sqrt(((by_group - mean) ** 2).sum((1, 3), keepdims=True) / count + eps)
        z = ((by_group - mean) * rstd).reshape(x.shape)
        z = z * (1 if weight is None else weight) + (0 if bias is None else bias)
        out = z / (1 + np.exp(-z)) if activation == "silu" else z
    return out, mean.reshape(N, groups), rstd.reshape(N, groups)
