# SPDX-License-Identifier: Apache-2.0
"""moe_unpermute_backward slot by slot; and beside moe_permute, whose inverse it is."""

import anyop
import numpy as np


def reference(grad_out, y, inverse, weights):
    inverse = inverse.astype(int)
    grad_y, grad_weights = np.zeros(y.shape), np.zeros(inverse.shape)
    for t, k in np.ndindex(inverse.shape):
        if 0 <= (i := inverse[t, k]) < len(y):
            grad_y[i] = grad_out[t] * (1 if weights is None else weights[t, k])
            grad_weights[t, k] = (grad_out[t] * y[i]).sum()
    return grad_y, grad_weights


def test_each_is_the_gradient_of_the_other():
    random = np.random.default_rng(5)
    ids = random.integers(-1, 7, (19, 4)).astype(np.int32)
    order, inverse, _ = anyop.moe_sort(ids, 6)
    x = random.standard_normal((19, 24)).astype(np.float32)
    rows = anyop.moe_permute(x, order, 4)
    assert (anyop.moe_unpermute_backward(x, rows, inverse)[0] == rows).all()
    assert (
        anyop.moe_permute_backward(rows, order, 4, 19) == anyop.moe_unpermute(rows, inverse)
    ).all()
