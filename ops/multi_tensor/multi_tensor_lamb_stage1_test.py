# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_lamb_stage1."""

import numpy as np


def reference(p, g, m, v, update, step, global_norm, max_grad_norm, found_inf, inv_scale, beta1, beta2, eps,
              weight_decay, decoupled, bias_correction, grad_averaging):  # fmt: skip
    if found_inf is not None and found_inf.reshape(()) != 0:
        return
    step = step.reshape(())
    scale = 1.0 if inv_scale is None else inv_scale.reshape(())
    if global_norm is not None and max_grad_norm is not None:
        scale = scale / max(global_norm.reshape(()) / max_grad_norm.reshape(()), 1.0)
    for n in range(len(p)):
        h = g[n] * scale + (0 if decoupled else weight_decay * p[n])
        m[n][...] = beta1 * m[n] + (1 - beta1 if grad_averaging else 1) * h
        v[n][...] = beta2 * v[n] + (1 - beta2) * h**2
        mean, square = m[n], v[n]
        if bias_correction:
            mean, square = mean / (1 - beta1**step), square / (1 - beta2**step)
        change = mean / (np.sqrt(square) + eps)
        update[n][...] = change + (weight_decay * p[n] if decoupled else 0)
