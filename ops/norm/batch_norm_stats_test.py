# SPDX-License-Identifier: Apache-2.0
"""batch_norm_stats in float64, and what both orders of channels share: far means, threads, many pixels."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x):
    count, over = max(x[:, :1].size, 1), (0, *range(2, x.ndim))
    with np.errstate(all="ignore"):
        mean = x.sum(over, keepdims=True) / count
        return mean.reshape(-1), ((x - mean) ** 2).sum(over) / count


def last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    "shape", [(3, 40, 13, 17), (700, 33), (5, 1100, 3), (2, 1, 3001), (9, 2, 2)]
)
def test_both_orders_of_channels(shape, dtype):
    """Several parts of pixels, more channels than a block, a mean of 100 that would cancel."""
    random = np.random.default_rng(shape[0])
    x = (random.standard_normal(shape) + 100).astype(dtype)
    exact, limit = reference(x.astype(float)), 1e-12 if dtype == "float64" else 2e-5
    for found in (anyop.batch_norm_stats(x), anyop.batch_norm_stats_channels_last(last(x))):
        for one, expected in zip(found, exact, strict=True):
            np.testing.assert_allclose(one, expected, rtol=limit)


def test_the_same_bits_for_any_number_of_threads():
    x, before, found = np.random.default_rng(0).standard_normal((6, 70, 900)), [], []
    x, before = x.astype(np.float32), anyop.get_num_threads()
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(anyop.batch_norm_stats(x) + anyop.batch_norm_stats_channels_last(last(x)))
    finally:
        anyop.set_num_threads(before)
    for results in found[1:]:
        assert [r.tobytes() for r in results] == [r.tobytes() for r in found[0]]
