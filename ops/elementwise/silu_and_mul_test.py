# SPDX-License-Identifier: Apache-2.0
"""silu_and_mul in float64; the halves are not mixed up."""

import anyop
import numpy as np


def reference(x):
    D = x.shape[-1] // 2
    gate, up = x[..., :D], x[..., D:]
    with np.errstate(all="ignore"):
        return gate / (1 + np.exp(-gate)) * up


def test_the_first_half_is_the_gate():
    x = np.zeros((2, 6), np.float32)
    x[:, :3], x[:, 3:] = 100, [1, 2, 3]
    np.testing.assert_array_equal(anyop.silu_and_mul(x), [[100, 200, 300]] * 2)
