# SPDX-License-Identifier: Apache-2.0
"""rotary_backward in float64."""

import numpy as np


def reference(grad_out, cos, sin):
    D = grad_out.shape[-1] // 2
    a, b = grad_out[..., :D], grad_out[..., D:]
    with np.errstate(invalid="ignore"):  # infinities of the standard tests
        return np.concatenate([a * cos + b * sin, b * cos - a * sin], axis=-1)
