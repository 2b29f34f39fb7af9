# SPDX-License-Identifier: Apache-2.0
"""group_norm_channels_last_backward in float64; more in group_norm_backward_test.py."""

import numpy as np


def reference(grad_out, x, mean, rstd, groups, weight, bias, activation):
    N, C = len(x), x.shape[-1]
    split = (N, -1, groups, C // groups)
    mean, rstd = (v.reshape(N, 1, groups, 1) for v in (mean, rstd))
    w = np.ones(C) if weight is None else weight
    with np.errstate(all="ignore"):
        h = ((x.reshape(split) - mean) * rstd).reshape(N, -1, C)
        z = h * w + (0 if bias is None else bias)
        s = 1 / (1 + np.exp(-z))
        d = grad_out.reshape(N, -1, C) * (s * (1 + z * (1 - s)) if activation == "silu" else 1)
        count = max(h.shape[1] * (C // groups), 1)
        inner, h_split = (d * w).reshape(split), h.reshape(split)
        a = inner.sum((1, 3), keepdims=True) / count
        b = (inner * h_split).sum((1, 3), keepdims=True) / count
        grad_x = (rstd * (inner - a - h_split * b)).reshape(x.shape)
    return grad_x, (d * h).sum((0, 1)), d.sum((0, 1))
