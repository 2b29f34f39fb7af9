# SPDX-License-Identifier: Apache-2.0
"""index_mul_2d_double_backward in float64, and through torch's gradgradcheck."""

import anyop
import numpy as np
import pytest


def reference(grad_out, in1, in2, indices, grad_grad_in1, grad_grad_in2):
    of_in1 = np.zeros_like(in1) if grad_grad_in1 is None else grad_grad_in1
    of_in2 = np.zeros_like(in2) if grad_grad_in2 is None else grad_grad_in2
    grad_in1 = np.zeros_like(in1)
    with np.errstate(all="ignore"):
        if grad_grad_in2 is not None:
            np.add.at(grad_in1, indices, of_in2 * grad_out)
        grad_grad_out = np.zeros_like(in2)
        if grad_grad_in1 is not None:
            grad_grad_out += of_in1[indices] * in2
        if grad_grad_in2 is not None:
            grad_grad_out += of_in2 * in1[indices]
        grad_in2 = of_in1[indices] * (grad_out if grad_grad_in1 is not None else 0)
    return grad_grad_out, grad_in1, grad_in2


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_derivatives_of_both_orders(needs):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    given = [
        torch.randn(size, 3, dtype=torch.float64, requires_grad=need)
        for size, need in zip((5, 7), needs)
    ]
    indices = torch.tensor([4, 0, 4, 2, 0, 0, 1])

    def function(in1, in2):
        return anyop.index_mul_2d(in1, in2, indices)

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)
