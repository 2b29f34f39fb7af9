# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_adam."""

import numpy as np


def reference(p, g, m, v, lr, step, master, copy, found_inf, inv_scale, beta1, beta2, eps, weight_decay, decoupled,
              bias_correction, maximize, average, average_rate):  # fmt: skip
    if found_inf is not None and found_inf.reshape(()) != 0:
        return
    lr, step = (value.reshape(()) for value in (lr, step))
    scale = (1.0 if inv_scale is None else inv_scale.reshape(())) * (-1 if maximize else 1)
    for n in range(len(p)):
        old = (p if master is None else master)[n]
        h = g[n] * scale + (0 if decoupled else weight_decay * old)
        m[n][...] = beta1 * m[n] + (1 - beta1) * h
        v[n][...] = beta2 * v[n] + (1 - beta2) * h**2
        mean, square = m[n], v[n]
        if bias_correction:
            mean, square = mean / (1 - beta1**step), square / (1 - beta2**step)
        change = mean / (np.sqrt(square) + eps) + (weight_decay * old if decoupled else 0)
        new = old - lr * change
        if average is not None:
            rate = 1 / step if average_rate is None else average_rate.reshape(())
            rate = np.where(step == 1, 1.0, rate)
            average[n][...] = average[n] + rate * (new - average[n])
        for written in (p, master, copy):
            if written is not None:
                written[n][...] = new
