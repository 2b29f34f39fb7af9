# SPDX-License-Identifier: Apache-2.0
"""add_backward in float64; every way to broadcast, in exact numbers."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def _summed(whole, shape):
    """Sums over the sizes that broadcasting added or repeated."""
    whole = whole.sum(tuple(range(whole.ndim - len(shape))))
    repeated = tuple(d for d, size in enumerate(shape) if size == 1 and whole.shape[d] != 1)
    return whole.sum(repeated, keepdims=True)


def reference(x, y, grad_out, alpha):
    with np.errstate(all="ignore"):
        return _summed(grad_out, x.shape), _summed(alpha * grad_out, y.shape)


SHAPES = [((7,), (7,)), ((3000, 5), (5,)), ((5, 3000), (5, 1)), ((), (5000,)), ((2, 1), (1, 3))]
SHAPES += [((4, 1, 300, 1), (2, 1, 1500)), ((1, 1), (70, 2050)), ((70, 2050), (2050,))]
SHAPES += [((2, 3, 4, 5, 6), (3, 1, 5, 1)), ((0, 3), (3,)), ((3, 0), (3, 1)), ((1, 0), (4, 1))]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_broadcast_exactly(left, right, dtype):
    """Small integers, mostly 0: sums have no rounding, whatever their order."""
    random = np.random.default_rng(0)
    x, y = (random.integers(-1, 2, shape).astype(dtype) for shape in (left, right))
    shape = np.broadcast_shapes(left, right)
    grad = (random.integers(-1, 2, shape) * (random.random(shape) < 0.2)).astype(dtype)
    exact = reference(x.astype(float), y.astype(float), grad.astype(float), 2)
    given = [(x, y), (x[..., ::-1][..., ::-1] if x.ndim else x, np.asfortranarray(y))]
    for a, b in given:
        for found, expected in zip(anyop.add_backward(a, b, grad, alpha=2), exact, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_mixed_dtypes_as_in_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.randn(5, 40, dtype=torch.bfloat16, requires_grad=True)
    y = torch.randn(40, dtype=torch.float64, requires_grad=True)
    out = torch.add(x, y, alpha=2)
    grad = torch.randn(5, 40, dtype=torch.float64)
    found = anyop.add_backward(x.detach(), y.detach(), grad, alpha=2)
    for ours, theirs in zip(found, torch.autograd.grad(out, (x, y), grad), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)
