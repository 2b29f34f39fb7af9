# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_l2norm."""

import numpy as np


def reference(x, scale):
    factor = 1.0 if scale is None else scale.reshape(())
    each = np.array([np.sqrt(np.sum((a * factor) ** 2)) for a in x]).reshape(len(x))
    total = np.sqrt(np.sum(each**2))
    return total, each
