# SPDX-License-Identifier: Apache-2.0
"""native_linear_gated in float64: the result, gates and values."""

from linear_gated_test import both


def reference(x, weight, activation):
    return both(x, weight, activation)
