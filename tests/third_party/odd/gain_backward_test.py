# SPDX-License-Identifier: Apache-2.0
"""gain_backward in float64."""

import numpy as np


def reference(grad_out, grad_sum, sum, weight):
    grad_x, grad_weight = np.zeros_like(sum), np.zeros_like(sum)
    if grad_sum is not None:
        grad_x = grad_sum
    if grad_out is not None:
        grad_x = grad_x + grad_out * (1 if weight is None else weight)
        grad_weight = grad_out * sum
    return grad_x, grad_weight.sum(tuple(range(sum.ndim - 1)))
