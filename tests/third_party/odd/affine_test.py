# SPDX-License-Identifier: Apache-2.0
"""affine against float64."""


def reference(x, factor, offset):
    return x * factor + offset
