# SPDX-License-Identifier: Apache-2.0
"""scale_rows in float64; in place, rows of factor 1 keep their bits."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, factor):
    return x * np.broadcast_to(factor, x.shape[:-1])[..., None]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("V", [5, 1025, 8200])
def test_in_place(dtype, V):
    """A NaN with its own bits, in a row of factor 1, is not touched; one number for all rows."""
    random = np.random.default_rng(V)
    x = random.standard_normal((3, 2, V)).astype(dtype)
    x.view(np.uint8)[1, 1] = 255
    wide = np.float64 if dtype == "float64" else np.float32
    factor = np.array([[2, 1], [0.5, 1], [1, -3]], wide)
    exact, before = reference(x.astype(float), factor), x.copy()
    found = anyop.scale_rows(x, factor)
    np.testing.assert_array_equal(found.astype(float), exact.astype(x.dtype).astype(float))
    assert anyop.scale_rows(x, factor, out=x) is x
    assert x[factor != 1].tobytes() == found[factor != 1].tobytes()
    assert x[factor == 1].tobytes() == before[factor == 1].tobytes()
    anyop.scale_rows(x, np.ones((), wide), out=x)
    assert x[1, 1].tobytes() == before[1, 1].tobytes()
