# SPDX-License-Identifier: Apache-2.0
"""count_into in float64; changes x and seen as the operator does."""

import numpy as np


def reference(x, index, y, seen):
    np.add.at(x, index, y)
    count = np.bincount(index, minlength=len(x))
    if seen is not None:
        seen += count
    return count
