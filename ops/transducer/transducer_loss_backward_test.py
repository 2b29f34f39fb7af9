# SPDX-License-Identifier: Apache-2.0
"""transducer_loss_backward in float64; in place."""

import anyop
import numpy as np


def reference(
    x, label, f_len, y_len, blank_moves, label_moves, lse, grad_loss, blank_idx, log_softmax
):
    grad = np.zeros(x.shape)
    for b, t, u in np.ndindex(x.shape[:3]):
        if t >= f_len[b] or u > y_len[b]:
            continue
        to_blank, to_label = blank_moves[b, t, u], label_moves[b, t, u]
        if log_softmax:
            grad[b, t, u] = (to_blank + to_label) * np.exp(x[b, t, u] - lse[b, t, u])
        grad[b, t, u, blank_idx] -= to_blank
        if u < y_len[b]:
            grad[b, t, u, label[b, u]] -= to_label
        grad[b, t, u] *= grad_loss[b]
    return grad


def test_in_place():
    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float16):
        x = random.standard_normal((2, 5, 4, 40)).astype(dtype)
        rest = random.integers(1, 40, (2, 3)), np.array([5, 2]), np.array([3, 1])
        _, *saved = anyop.transducer_loss(x, *rest)
        given = *rest, *saved, np.array([2, -1], np.float32)
        found = anyop.transducer_loss_backward(x, *given)
        assert anyop.transducer_loss_backward(x, *given, grad_x=x) is x
        assert found.tobytes() == x.tobytes()
