# SPDX-License-Identifier: Apache-2.0
"""transducer_loss_packed_backward in float64; longer sequences: transducer_loss_packed_test.py."""

import numpy as np
import pytest


def reference(
    x, label, f_len, y_len, batch_offset, blank_moves, label_moves, lse, grad_loss, blank_idx,
    log_softmax,
):  # fmt: skip
    """Of sequences of one row each."""
    grad = np.zeros(x.shape)
    for b, end in enumerate(batch_offset):
        row = end - 1
        if log_softmax:
            grad[row] = (blank_moves[row] + label_moves[row]) * np.exp(x[row] - lse[row])
        grad[row, blank_idx] -= blank_moves[row]
        grad[row] *= grad_loss[b]
    return grad


def test_gradients_from_torch():
    """gradcheck in float64."""
    torch = pytest.importorskip("torch")
    import anyop.torch

    label, f_len, y_len = torch.tensor([[1, 4], [2, 0]]), torch.tensor([3, 2]), torch.tensor([1, 2])
    ends = torch.cumsum(f_len * (y_len + 1), 0)
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: anyop.transducer_loss_packed(x, label, f_len, y_len, ends, 3)[0], (x,)
    )
