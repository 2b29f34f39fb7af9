# SPDX-License-Identifier: Apache-2.0
"""focal_loss_backward in float64; in place."""

import anyop
import numpy as np


def reference(partial, num_positives, grad_loss):
    return partial * (grad_loss / num_positives)


def test_in_place():
    partial = np.random.default_rng(0).standard_normal((7, 88)).astype(np.float16)
    given, positives = np.array(3, np.float32), np.array(5, np.float32)
    found = anyop.focal_loss_backward(partial, positives, given)
    assert anyop.focal_loss_backward(partial, positives, given, grad_x=partial) is partial
    assert found.tobytes() == partial.tobytes()
