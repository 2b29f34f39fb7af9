# SPDX-License-Identifier: Apache-2.0
"""linear_wgrad_accumulate in float64; exact sums, several blocks, one rounding."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, grad_out, grad_weight):
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        grad_weight += np.tensordot(grad_out, x, (rows, rows))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_exactly(dtype):
    """Small integers; 3,000 by 1,500 sums are more than 2^22, so that there are several blocks."""
    random = np.random.default_rng(0)
    for M, N, K in ((70, 40, 33), (6, 3000, 1500)):
        x, grad = (random.integers(-1, 2, s).astype(dtype) for s in ((M, K), (M, N)))
        for into in {dtype, "float32"}:
            weight = random.integers(-9, 10, (N, K)).astype(into)
            exact = weight.astype(float)
            reference(x.astype(float), grad.astype(float), exact)
            assert anyop.linear_wgrad_accumulate(x, grad, weight) is None
            np.testing.assert_array_equal(weight.astype(float), exact)


def test_float32_keeps_what_16_bits_lose():
    x = np.full((1, 1), 2.0**-9).astype("bfloat16")
    one = np.ones((1, 1)).astype("bfloat16")
    wide, narrow = np.ones((1, 1), np.float32), one.copy()
    for _ in range(4):
        anyop.linear_wgrad_accumulate(x, one, wide)
        anyop.linear_wgrad_accumulate(x, one, narrow)
    assert wide[0, 0] == 1 + 2.0**-7 and float(narrow[0, 0]) == 1


def test_tensors_of_frameworks():
    """torch sees that the tensor was written; JAX's jit returns the new value."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    import anyop.jax
    import anyop.torch

    random = np.random.default_rng(0)
    x, grad, weight = (random.standard_normal(s).astype("f4") for s in ((7, 5), (7, 4), (4, 5)))
    expected = weight + grad.T @ x
    mine = torch.from_numpy(weight.copy())
    for call in (anyop.linear_wgrad_accumulate, torch.ops.anyop.linear_wgrad_accumulate):
        mine.copy_(torch.from_numpy(weight))
        version = mine._version
        call(torch.from_numpy(x), torch.from_numpy(grad), mine)
        assert mine._version > version
        np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-5, atol=1e-5)
    found = jax.jit(anyop.linear_wgrad_accumulate)(x, grad, weight)
    np.testing.assert_allclose(jax.tree.leaves(found)[0], expected, rtol=1e-5, atol=1e-5)
