# SPDX-License-Identifier: Apache-2.0
"""linear_backward in float64; many rows in exact numbers, every choice of gradients."""

import itertools

import anyop
import numpy as np
import pytest


def reference(grad_out, x, weight):
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        grad_weight = np.tensordot(grad_out, x, (rows, rows))
        return grad_out @ weight, grad_weight, grad_out.sum(rows)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_many_rows_exactly(dtype):
    """Small integers: sums have no rounding, whatever their order."""
    random = np.random.default_rng(0)
    shapes = [(3, 77, 40), (3, 77, 50), (40, 50)]
    grad, x, weight = (random.integers(-2, 3, shape).astype(dtype) for shape in shapes)
    exact = reference(*(v.astype(float) for v in (grad, x, weight)))
    for found, expected in zip(anyop.linear_backward(grad, x, weight), exact, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_every_choice_of_gradients():
    random = np.random.default_rng(0)
    grad, x, weight = (random.standard_normal(s).astype("f4") for s in [(70, 9), (70, 5), (9, 5)])
    names = ["grad_x", "grad_weight", "grad_bias"]
    whole = anyop.linear_backward(grad, x, weight)
    for wanted in itertools.product([False, True], repeat=3):
        unwanted = {name: False for name, keep in zip(names, wanted, strict=True) if not keep}
        found = anyop.linear_backward(grad, x, weight, **unwanted)
        for result, expected, keep in zip(found, whole, wanted, strict=True):
            assert (result is not None) == keep
            if keep:
                np.testing.assert_array_equal(result, expected)
