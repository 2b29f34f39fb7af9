# SPDX-License-Identifier: Apache-2.0
"""silu in float64; the tails."""

import anyop
import numpy as np


def reference(x):
    with np.errstate(all="ignore"):
        return x / (1 + np.exp(-x))


def test_tails():
    x = np.concatenate([np.linspace(-100, 100, 20001), [3e38, -3e38]]).astype(np.float32)
    np.testing.assert_allclose(anyop.silu(x), reference(x.astype(float)), rtol=1e-5, atol=1e-7)
    special = anyop.silu(np.array([np.nan, np.inf], np.float32))
    assert np.isnan(special[0]) and special[1] == np.inf
