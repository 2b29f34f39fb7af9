# SPDX-License-Identifier: Apache-2.0
"""linear_gated_backward in float64; each gradient alone."""

import anyop
import numpy as np
from linear_act_backward_test import slope
from linear_act_test import activate


def reference(grad_out, x, weight, pre, activation):
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        pre = x @ weight.T if pre is None else pre
        gate, value = np.split(pre, 2, -1)
        parts = [grad_out * value * slope(gate, activation), grad_out * activate(gate, activation)]
        g = np.concatenate(parts, -1)
        return g @ weight, np.tensordot(g, x, (rows, rows))


def test_each_gradient_alone():
    random = np.random.default_rng(0)
    shapes = [(70, 9), (70, 5), (18, 5), (70, 18)]
    values = [random.standard_normal(s).astype("f4") for s in shapes]
    whole = anyop.linear_gated_backward(*values, "gelu")
    for found, exact in zip(
        whole, reference(*(v.astype(float) for v in values), "gelu"), strict=True
    ):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=5e-5)
    alone = anyop.linear_gated_backward(*values, "gelu", grad_weight=False)
    assert alone[1] is None
    np.testing.assert_array_equal(alone[0], whole[0])
    alone = anyop.linear_gated_backward(*values, "gelu", grad_x=False)
    np.testing.assert_array_equal(alone[1], whole[1])
