# SPDX-License-Identifier: Apache-2.0
"""moe_unpermute slot by slot."""

import numpy as np


def reference(y, inverse, weights):
    inverse = inverse.astype(int)
    out = np.zeros((len(inverse), y.shape[1]))
    for t, k in np.ndindex(inverse.shape):
        if 0 <= inverse[t, k] < len(y):
            out[t] += y[inverse[t, k]] * (1 if weights is None else weights[t, k])
    return out
