# SPDX-License-Identifier: Apache-2.0
"""The reference of multi_tensor_clip_grad_norm."""

import numpy as np


def reference(g, max_norm, norm, norm_type):
    if norm is not None:
        total = norm.reshape(())
    elif norm_type == 0:
        total = max((np.max(np.abs(a), initial=0.0) for a in g), default=0.0)
    else:
        total = np.sqrt(sum(np.sum(a * a) for a in g))
    factor = np.minimum(max_norm.reshape(()) / (total + 1e-6), 1)
    for a in g:
        a *= factor
    return np.asarray(total, np.float64)
