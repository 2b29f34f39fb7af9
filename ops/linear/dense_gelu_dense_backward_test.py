# SPDX-License-Identifier: Apache-2.0
"""dense_gelu_dense_backward in float64; several blocks; each gradient alone."""

import anyop
import numpy as np
from linear_act_backward_test import slope

NAMES = ["grad_x", "grad_weight1", "grad_bias1", "grad_weight2", "grad_bias2"]


def reference(grad_out, x, weight1, weight2, gelu_in, hidden, approximate):
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        g = grad_out @ weight2 * slope(gelu_in, "gelu_tanh" if approximate == "tanh" else "gelu")
        grad_weight1 = np.tensordot(g, x, (rows, rows))
        grad_weight2 = np.tensordot(grad_out, hidden, (rows, rows))
        return g @ weight1, grad_weight1, g.sum(rows), grad_weight2, grad_out.sum(rows)


def test_several_blocks_and_each_gradient_alone():
    random = np.random.default_rng(0)
    shapes = [(1500, 3), (1500, 4), (3000, 4), (3, 3000), (1500, 3000), (1500, 3000)]
    values = [random.standard_normal(s).astype("f4") for s in shapes]
    whole = anyop.dense_gelu_dense_backward(*values)
    expected = reference(*(v.astype(float) for v in values), "tanh")
    for found, exact in zip(whole, expected, strict=True):
        assert (np.abs(found - exact) <= 1e-4 * (5 + np.abs(exact))).all()
    for at, name in enumerate(NAMES):
        others = {other: False for other in NAMES if other != name}
        found = anyop.dense_gelu_dense_backward(*values, **others)
        assert [result is None for result in found] == [other != name for other in NAMES]
        np.testing.assert_array_equal(found[at], whole[at])
