# SPDX-License-Identifier: Apache-2.0
"""log_softmax in float64; NaN, infinities, every dimension of a tensor of four."""

import numpy as np
import pytest

import anyop


def reference(x, dim):
    if x.ndim == 0:
        return reference(x[None], 0)[0]
    with np.errstate(all="ignore"):
        shifted = x - x.max(dim, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))


@pytest.mark.parametrize("dim", range(-4, 4))
def test_every_dimension(dim):
    x = np.random.default_rng(dim + 4).standard_normal((3, 5, 2, 19)).astype(np.float32)
    np.testing.assert_allclose(anyop.log_softmax(x, dim), reference(x.astype(float), dim), rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_is_as_in_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.random.default_rng(0).standard_normal((5, 30)).astype(np.float32)
    x[0, 3], x[1, 29], x[2], x[3, 7] = np.nan, -np.inf, -np.inf, np.inf
    expected = torch.log_softmax(torch.from_numpy(x), -1).numpy()
    np.testing.assert_allclose(anyop.log_softmax(x), expected, rtol=1e-5, atol=1e-6)


def test_large_scores_do_not_overflow():
    x = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    np.testing.assert_allclose(anyop.log_softmax(x), reference(x.astype(float), -1), rtol=1e-6)
