# SPDX-License-Identifier: Apache-2.0
"""native_linear_act in float64: the result, and what the activation was applied to."""

from linear_act_test import activate, before


def reference(x, weight, bias, residual, activation):
    pre = before(x, weight, bias, residual)
    return activate(pre, activation), pre
