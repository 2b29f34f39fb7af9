# SPDX-License-Identifier: Apache-2.0
"""top_k_mask by a stable sort."""

import anyop
import numpy as np
import pytest
from draw_reference import first


def reference(logits, top_k):
    top_k = np.broadcast_to(top_k, len(logits))
    kept = np.array([first(row, k) for row, k in zip(logits, top_k)]).reshape(logits.shape)
    bad = np.isnan(logits).any(-1, keepdims=True)
    return np.where(bad, np.nan, np.where(kept.astype(bool), logits, -np.inf))


@pytest.mark.parametrize("k", [2, 63, 64, 200, 501, 31_000])
def test_long_rows_with_equal_elements(k):
    """Of equal ones the first are kept, however many blocks of a row have them."""
    random = np.random.default_rng(k)
    V = 32_017
    few = random.integers(-4, 4, (2, V)).astype(np.float32)
    few[1] *= -0.0
    logits = np.stack([*few, np.arange(V), -np.arange(V), random.standard_normal(V), few[0]])
    logits = logits.astype(np.float32)
    logits[5, 100:] = -np.inf
    np.testing.assert_array_equal(anyop.top_k_mask(logits, k), reference(logits, k))
