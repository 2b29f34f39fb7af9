# SPDX-License-Identifier: Apache-2.0
"""scaled_upper_triang_masked_softmax in float64; what lies above the diagonal is neither read nor left as it was."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, scale):
    keep = np.tril(np.ones(x.shape[-2:], bool))
    with np.errstate(all="ignore"):
        scores = np.where(keep, scale * x, -np.inf)
        power = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return np.where(keep, power / power.sum(-1, keepdims=True), 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("S", [1, 65, 1100])
def test_sizes_around_blocks(dtype, S):
    x = (np.random.default_rng(S).standard_normal((2, S, S)) * 3).astype(dtype)
    above = np.triu(np.ones((S, S), bool), 1)
    x[:, above] = np.nan
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    found = anyop.scaled_upper_triang_masked_softmax(x, 0.25, out=np.full_like(x, np.nan))
    expected = reference(x.astype(float), 0.25)
    np.testing.assert_allclose(found.astype(float), expected, limit, limit)
    assert (found[:, above] == 0).all() and (found[:, 0, 0] == 1).all()


def test_only_square_matrices():
    with pytest.raises(ValueError, match=r"^scaled_upper_triang_masked_softmax: x has shape"):
        anyop.scaled_upper_triang_masked_softmax(np.ones((2, 3, 4), np.float32))


def test_huge_scales_leave_the_greatest_alone():
    random = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        x = random.standard_normal((3, 40, 40)).astype(dtype)
        for scale in (1e10, -1e10, 1e30, -1e38, 1e39):
            found = anyop.scaled_upper_triang_masked_softmax(x, scale)
            np.testing.assert_array_equal(found, reference(x.astype(float), scale))
