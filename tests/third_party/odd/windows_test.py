# SPDX-License-Identifier: Apache-2.0
"""windows by NumPy's views."""

import numpy as np


def reference(x, width, step):
    return np.lib.stride_tricks.sliding_window_view(x, width, axis=-1)[..., ::step, :]
