# SPDX-License-Identifier: Apache-2.0
"""native_dense_gelu_dense in float64: the result and both sides of gelu."""

from dense_gelu_dense_test import parts


def reference(x, weight1, bias1, weight2, bias2, approximate):
    return parts(x, weight1, bias1, weight2, bias2, approximate)
