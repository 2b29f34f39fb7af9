# SPDX-License-Identifier: Apache-2.0
"""log_softmax in float64; NaN, infinities, every dimension of a tensor of four."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, dim):
    if x.ndim == 0:
        return reference(x[None], 0)[0]
    with np.errstate(all="ignore"):
        shifted = x - x.max(dim, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))


@pytest.mark.parametrize("dim", range(-4, 4))
def test_every_dimension(dim):
    x = np.random.default_rng(dim + 4).standard_normal((3, 5, 2, 19)).astype(np.float32)
    np.testing.assert_allclose(
        anyop.log_softmax(x, dim), reference(x.astype(float), dim), rtol=1e-5, atol=1e-6
    )


def test_what_is_not_finite_is_as_in_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.random.default_rng(0).standard_normal((5, 30)).astype(np.float32)
    x[0, 3], x[1, 29], x[2], x[3, 7] = np.nan, -np.inf, -np.inf, np.inf
    expected = torch.log_softmax(torch.from_numpy(x), -1).numpy()
    np.testing.assert_allclose(anyop.log_softmax(x), expected, rtol=1e-5, atol=1e-6)


def test_large_scores_do_not_overflow():
    x = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    np.testing.assert_allclose(anyop.log_softmax(x), reference(x.astype(float), -1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((2, 1023), 1),
        ((2, 8193), 1),
        ((2, 20000), 1),
        ((70, 1025), 0),
        ((2, 130, 2050), 1),
        ((3, 1, 5), 1),
    ],
)
def test_sizes_around_blocks(dtype, shape, dim):
    """Rows longer than a block; columns in more than one tile, summed in more than one turn."""
    dtype = np.dtype(dtype)
    x = (np.random.default_rng(0).standard_normal(shape) * 3).astype(dtype)
    expected = reference(x.astype(float), dim)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype.name]
    found = anyop.log_softmax(x, dim).astype(float)
    assert (np.abs(found - expected) <= limit * (1 + np.abs(expected))).all()
