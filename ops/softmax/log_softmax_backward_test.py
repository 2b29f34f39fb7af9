# SPDX-License-Identifier: Apache-2.0
"""log_softmax_backward in float64; every dimension of a tensor of four, sizes around blocks."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(grad_out, out, dim):
    if out.ndim == 0:
        return reference(grad_out[None], out[None], 0)[0]
    with np.errstate(all="ignore"):
        return grad_out - np.exp(out) * grad_out.sum(dim, keepdims=True)


@pytest.mark.parametrize("dim", range(-4, 4))
def test_every_dimension(dim):
    random = np.random.default_rng(dim + 4)
    grad, x = (random.standard_normal((3, 5, 2, 19)).astype(np.float32) for _ in range(2))
    out = anyop.log_softmax(x, dim)
    found = anyop.log_softmax_backward(grad, out, dim)
    exact = reference(grad.astype(float), out.astype(float), dim)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


SHAPES = [((2, 1023), 1), ((2, 8193), 1), ((2, 20000), 1), ((70, 1025), 0), ((2, 130, 2050), 1)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_sizes_around_blocks(dtype, shape, dim):
    """Rows longer than a block; columns in more than one tile, summed in more than one turn."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(0)
    grad, x = ((random.standard_normal(shape) * 3).astype(dtype) for _ in range(2))
    out = anyop.log_softmax(x, dim)
    expected = reference(grad.astype(float), out.astype(float), dim)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-5, "float64": 1e-13}[dtype.name]
    found = anyop.log_softmax_backward(grad, out, dim).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()
