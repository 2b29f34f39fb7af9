# SPDX-License-Identifier: Apache-2.0
"""matmul in float64, and layouts of its matrices."""

import itertools

import anyop
import numpy as np
import pytest


def reference(a, b):
    with np.errstate(all="ignore"):
        return np.matmul(a, b)


def _layouts(matrix):
    """The same values: plain, transposed, with steps, backwards, inside a larger one."""
    turned = np.ascontiguousarray(np.swapaxes(matrix, -1, -2))
    *lead, rows, cols = matrix.shape
    wide = np.zeros((*lead, 2 * rows, 3 * cols), matrix.dtype)
    wide[..., ::2, ::3] = matrix
    inside = np.zeros((*lead, rows + 2, cols + 3), matrix.dtype)
    inside[..., 1:-1, 2:-1] = matrix
    return {
        "plain": matrix,
        "transposed": np.swapaxes(turned, -1, -2),
        "steps": wide[..., ::2, ::3],
        "backwards": np.ascontiguousarray(matrix[..., ::-1, ::-1])[..., ::-1, ::-1],
        "inside": inside[..., 1:-1, 2:-1],
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    "M,K,N", [(1, 40, 70), (70, 40, 1), (5, 1, 90), (20, 600, 30), (130, 33, 140)]
)
def test_layouts(M, K, N, dtype):
    """Integers make the sums exact, so that each result must be exact too."""
    generator = np.random.default_rng(K)
    a = generator.integers(-2, 3, (2, 1, M, K)).astype(dtype)
    b = generator.integers(-2, 3, (3, K, N)).astype(dtype)
    expected = np.matmul(a.astype(float), b.astype(float))
    for (x, left), (y, right) in itertools.product(_layouts(a).items(), _layouts(b).items()):
        found = anyop.matmul(left, right).astype(float)
        np.testing.assert_array_equal(found, expected, err_msg=f"{x} by {y}")


def test_one_b_for_all():
    """The batch becomes rows of a."""
    generator = np.random.default_rng(0)
    a = generator.integers(-2, 3, (4, 3, 50, 20)).astype(np.float32)
    b = generator.integers(-2, 3, (20, 30)).astype(np.float32)
    np.testing.assert_array_equal(anyop.matmul(a, b), np.matmul(a, b))
    np.testing.assert_array_equal(anyop.matmul(a[:, 1:], b), np.matmul(a[:, 1:], b))
    np.testing.assert_array_equal(anyop.matmul(a[:, :, :1], b), np.matmul(a[:, :, :1], b))
