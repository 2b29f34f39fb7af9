# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_adagrad."""

import numpy as np


def reference(p, g, squares, lr, master, copy, found_inf, inv_scale, eps, weight_decay, decoupled,
              maximize):  # fmt: skip
    if found_inf is not None and found_inf.reshape(()) != 0:
        return
    scale = (1.0 if inv_scale is None else inv_scale.reshape(())) * (-1 if maximize else 1)
    for n in range(len(p)):
        old = (p if master is None else master)[n]
        h = g[n] * scale + (0 if decoupled else weight_decay * old)
        total = squares[n] + h**2
        change = h / (np.sqrt(total) + eps) + (weight_decay * old if decoupled else 0)
        new = old - lr.reshape(()) * change
        for written, value in ((p, new), (master, new), (copy, new), (squares, total)):
            if written is not None:
                written[n][...] = value
