# SPDX-License-Identifier: Apache-2.0
"""combine in float64."""

import numpy as np


def reference(partial, lse, dtype):
    with np.errstate(all="ignore"):
        most = np.max(lse, 1, keepdims=True, initial=-np.inf)
        base = np.where(most == -np.inf, 0, most)
        weights = np.exp(lse - base)
        total = weights.sum(1, keepdims=True)
        shares = np.where(weights == 0, 0, weights / total)[..., None]
        out = np.where(shares == 0, 0, shares * partial).sum(1)
        return out, np.where(total == 0, -np.inf, base + np.log(total))[:, 0]
