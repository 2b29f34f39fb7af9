# SPDX-License-Identifier: Apache-2.0
"""scaled_softmax in float64; long rows, what is not finite."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, scale):
    with np.errstate(all="ignore"):
        scores = scale * x
        power = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return power / power.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("D", [1, 1023, 1025, 8193, 20000])
def test_sizes_around_blocks(dtype, D):
    x = (np.random.default_rng(D).standard_normal((3, D)) * 3).astype(dtype)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    for scale in (1.0, 0.125, -1.5):
        found = anyop.scaled_softmax(x, scale).astype(float)
        np.testing.assert_allclose(found, reference(x.astype(float), scale), limit, limit)
        np.testing.assert_allclose(found.sum(-1), 1, limit * 10)


def test_without_a_scale_it_is_softmax():
    x = np.random.default_rng(0).standard_normal((5, 3000)).astype(np.float32)
    assert anyop.scaled_softmax(x).tobytes() == anyop.softmax(x).tobytes()


def test_what_is_not_finite():
    x = np.random.default_rng(0).standard_normal((5, 30)).astype(np.float32)
    x[0, 3], x[1, 29], x[2], x[3, 7] = np.nan, -np.inf, -np.inf, np.inf
    found = anyop.scaled_softmax(x, 0.5)
    np.testing.assert_allclose(found, reference(x.astype(float), 0.5), 1e-6, 1e-6)
    assert np.isnan(found[[0, 2, 3]]).all() and found[1, 29] == 0 and np.isfinite(found[4]).all()


def test_huge_scales_leave_the_greatest_alone():
    random = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        x = random.standard_normal((3, 40, 40)).astype(dtype)
        for scale in (1e10, -1e10, 1e30, -1e38, 1e39):
            found = anyop.scaled_softmax(x, scale)
            np.testing.assert_array_equal(found, reference(x.astype(float), scale))
