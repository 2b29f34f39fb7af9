# SPDX-License-Identifier: Apache-2.0
"""index_mul_2d_backward in float64; one index very often."""

import anyop
import numpy as np
import pytest


def reference(grad_out, in1, in2, indices):
    grad_in1 = np.zeros_like(in1)
    with np.errstate(all="ignore"):
        np.add.at(grad_in1, indices, grad_out * in2)
        return grad_in1, grad_out * in1[indices]


@pytest.mark.parametrize("D", [1, 63, 1025])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_one_index_very_often(dtype, D):
    """Thousands of additions keep their precision; rows longer than a block."""
    random = np.random.default_rng(D)
    indices = np.where(random.random(4000) < 0.9, 3, random.integers(0, 40, 4000))
    grad, in2 = ((random.standard_normal((4000, D)) + 1).astype(dtype) for _ in range(2))
    in1 = random.standard_normal((40, D)).astype(dtype)
    wide = [a.astype(float) for a in (grad, in1, in2)]
    expected = reference(*wide, indices)
    # The limit is that of a sum whose terms are all positive: errors do not grow with their number.
    sizes = reference(*map(np.abs, wide), indices)
    limit = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-13}[dtype]
    for found, exact, size in zip(
        anyop.index_mul_2d_backward(grad, in1, in2, indices), expected, sizes
    ):
        assert (np.abs(found.astype(float) - exact) <= limit * (1 + size)).all()
