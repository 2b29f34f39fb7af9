# SPDX-License-Identifier: Apache-2.0
"""matmul_backward in float64; sums over broadcast sizes in exact numbers."""

import anyop
import numpy as np
import pytest


def _summed(whole, shape):
    """Sums over the leading sizes that broadcasting added or repeated."""
    whole = whole.sum(tuple(range(whole.ndim - len(shape))))
    repeated = tuple(d for d, size in enumerate(shape) if size == 1 and whole.shape[d] != 1)
    return whole.sum(repeated, keepdims=True)


def reference(grad_out, a, b):
    with np.errstate(all="ignore"):
        grad_a = np.matmul(grad_out, np.swapaxes(b, -1, -2))
        grad_b = np.matmul(np.swapaxes(a, -1, -2), grad_out)
    return _summed(grad_a, a.shape), _summed(grad_b, b.shape)


# Leading sizes of a and b: joined into rows, joined into terms, neither.
LEADING = [((), ()), ((3,), ()), ((), (3,)), ((2, 3), (3,)), ((2, 3), (2, 1)), ((4, 1, 3), (2, 1))]
LEADING += [((1, 3), (5, 1)), ((2, 1, 3, 1), (1, 4, 1, 5)), ((0,), ()), ((), (0, 2)), ((1,), (0,))]


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 7, 2), (33, 1, 20), (40, 30, 1)])
def test_broadcast_exactly(leading, dtype, sizes):
    """Small integers: sums have no rounding, whatever their order."""
    random, (M, K, N) = np.random.default_rng(0), sizes
    a = random.integers(-2, 3, (*leading[0], M, K)).astype(dtype)
    b = random.integers(-2, 3, (*leading[1], K, N)).astype(dtype)
    grad = random.integers(-2, 3, np.matmul(a, b).shape).astype(dtype)
    turned = np.ascontiguousarray(a.T).T
    exact = reference(*(v.astype(float) for v in (grad, a, b)))
    for given in (a, turned):
        for found, expected in zip(anyop.matmul_backward(grad, given, b), exact, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_gradient_of_another_shape_is_refused():
    a, b = np.ones((2, 3, 4), "f4"), np.ones((4, 5), "f4")
    with pytest.raises(ValueError, match=r"grad_out \(3, 3, 5\) does not fit the broadcast of a"):
        anyop.matmul_backward(np.ones((3, 3, 5), "f4"), a, b)
