# SPDX-License-Identifier: Apache-2.0
"""transducer_joint_packed_backward in float64; longer sequences: transducer_joint_packed_test.py."""

import numpy as np
import pytest


def reference(grad_out, f, g, f_len, g_len, batch_offset, seed, offset, relu, dropout):
    assert not dropout  # transducer_joint_packed_test.py
    grad_f, grad_g = np.zeros(f.shape), np.zeros(g.shape)
    for b, end in enumerate(batch_offset):
        t, u = f_len[b], g_len[b]
        sums = f[b, :t, None] + g[b, None, :u]
        given = grad_out[end - t * u : end].reshape(sums.shape) * ~((sums <= 0) & relu)
        grad_f[b, :t], grad_g[b, :u] = given.sum(1), given.sum(0)
    return grad_f, grad_g


def test_gradients_from_torch():
    """gradcheck in float64."""
    torch = pytest.importorskip("torch")
    import anyop.torch

    f, g = (torch.randn(2, n, 5, dtype=torch.float64, requires_grad=True) for n in (3, 2))
    lengths = torch.tensor([3, 2]), torch.tensor([1, 2])
    ends = torch.cumsum(lengths[0] * lengths[1], 0)
    assert torch.autograd.gradcheck(
        lambda f, g: anyop.transducer_joint_packed(f, g, *lengths, ends, 7, relu=True)[0], (f, g)
    )
