# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_lamb."""

import numpy as np


def reference(p, g, m, v, update, lr, step, global_norm, max_grad_norm, master, copy, found_inf, inv_scale, beta1,
              beta2, eps, weight_decay, decoupled, bias_correction, grad_averaging, use_nvlamb):  # fmt: skip
    if found_inf is not None and found_inf.reshape(()) != 0:
        return
    lr, step = (value.reshape(()) for value in (lr, step))
    scale = 1.0 if inv_scale is None else inv_scale.reshape(())
    if global_norm is not None and max_grad_norm is not None:
        scale = scale / max(global_norm.reshape(()) / max_grad_norm.reshape(()), 1.0)
    for n in range(len(p)):
        old = (p if master is None else master)[n]
        h = g[n] * scale + (0 if decoupled else weight_decay * old)
        m[n][...] = beta1 * m[n] + (1 - beta1 if grad_averaging else 1) * h
        v[n][...] = beta2 * v[n] + (1 - beta2) * h**2
        mean, square = m[n], v[n]
        if bias_correction:
            mean, square = mean / (1 - beta1**step), square / (1 - beta2**step)
        change = mean / (np.sqrt(square) + eps) + (weight_decay * old if decoupled else 0)
        norms = np.sqrt(np.sum(old**2)), np.sqrt(np.sum(change**2))
        ratio = norms[0] / norms[1] if (use_nvlamb or weight_decay) and all(norms) else 1
        new = old - lr * ratio * change
        for written, value in ((p, new), (master, new), (copy, new), (update, change)):
            if written is not None:
                written[n][...] = value
