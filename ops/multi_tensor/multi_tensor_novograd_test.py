# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_novograd."""

import numpy as np


def reference(p, g, m, norms, lr, step, master, copy, found_inf, inv_scale, beta1, beta2, eps, weight_decay,
              bias_correction, grad_averaging, reg_inside_moment, norm_type, init_zero):  # fmt: skip
    if found_inf is not None and found_inf.reshape(()) != 0:
        return
    lr, step = (value.reshape(()) for value in (lr, step))
    scale = 1.0 if inv_scale is None else inv_scale.reshape(())
    for n in range(len(p)):
        old, h = (p if master is None else master)[n], g[n] * scale
        kept = beta2 if init_zero or step > 1 else 0
        if norm_type == 2:
            norms[n] = np.sqrt(kept * norms[n] ** 2 + (1 - kept) * np.sum(h**2))
        else:
            norms[n] = kept * norms[n] + (1 - kept) * np.max(np.abs(h), initial=0.0)
        root = norms[n] / (np.sqrt(1 - beta2**step) if bias_correction else 1) + eps
        if reg_inside_moment:
            h = h / root + weight_decay * old
        m[n][...] = beta1 * m[n] + (1 - beta1 if grad_averaging else 1) * h
        change = m[n] / (1 - beta1**step if bias_correction else 1)
        if not reg_inside_moment:
            change = change / root + weight_decay * old
        new = old - lr * change
        for written in (p, master, copy):
            if written is not None:
                written[n][...] = new
