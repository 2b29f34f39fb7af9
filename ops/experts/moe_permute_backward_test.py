# SPDX-License-Identifier: Apache-2.0
"""moe_permute_backward row by row."""

import numpy as np


def reference(grad_out, order, top_k, T):
    order = order.astype(int)
    slots = np.zeros((T * top_k, grad_out.shape[1]))
    inside = (order >= 0) & (order < T * top_k)
    slots[order[inside]] = grad_out[inside]
    return slots.reshape(T, top_k, grad_out.shape[1]).sum(1)
