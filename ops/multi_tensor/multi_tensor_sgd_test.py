# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_sgd."""


def reference(p, g, lr, buffer, step, master, copy, found_inf, inv_scale, momentum, dampening, weight_decay, nesterov,
              wd_after_momentum, maximize):  # fmt: skip
    if found_inf is not None and found_inf.reshape(()) != 0:
        return
    begins = momentum == 0 or (step is not None and step.reshape(()) <= 1)
    scale = (1.0 if inv_scale is None else inv_scale.reshape(())) * (-1 if maximize else 1)
    for n in range(len(p)):
        old = (p if master is None else master)[n]
        h = g[n] * scale + (0 if wd_after_momentum else weight_decay * old)
        last = 0 if buffer is None else momentum * buffer[n]
        mean = h if begins else last + (1 - dampening) * h
        change = momentum * mean + h if nesterov and momentum else mean
        change = change + (weight_decay * old if wd_after_momentum else 0)
        new = old - lr.reshape(()) * change
        for written, value in ((p, new), (master, new), (copy, new), (buffer, mean)):
            if written is not None:
                written[n][...] = value
