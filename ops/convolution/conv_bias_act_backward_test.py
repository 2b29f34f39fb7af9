# SPDX-License-Identifier: Apache-2.0
"""The gradients of conv_bias_act in float64, and as torch's gradcheck has them."""

import anyop
import numpy as np
import pytest
from conv_bias_act_test import windows


def reference(grad_out, x, weight, scale, out, stride, padding, dilation, relu, mask):
    R, S = weight.shape[1:3]
    with np.errstate(all="ignore"):
        passed = np.where(out <= 0, 0, grad_out) if relu else grad_out
        seen = passed if mask is None else np.where(mask, passed, 0)
        factor = 1 if scale is None else scale[:, None, None, None]
        parts = windows(x, R, S, stride, padding, dilation)
        grad_weight = np.einsum("npqrsc,npqk->krsc", parts, seen) * factor
        spread = np.einsum("npqk,krsc->npqrsc", seen, weight * factor)
        padded = np.zeros((len(x), x.shape[1] + 2 * padding, x.shape[2] + 2 * padding, x.shape[3]))
        P, Q = seen.shape[1:3]
        for r in range(R):
            for s in range(S):
                rows, columns = r * dilation, s * dilation
                place = padded[:, rows : rows + stride * P : stride]
                place[:, :P, columns : columns + stride * Q : stride][:, :, :Q] += spread[
                    :, :, :, r, s
                ]
        inside = padded[:, padding : padding + x.shape[1], padding : padding + x.shape[2]]
        return inside, grad_weight, seen.sum((0, 1, 2)), passed


@pytest.mark.parametrize(
    "stride, padding, dilation, relu", [(1, 1, 1, True), (2, 2, 2, False), (3, 0, 1, True)]
)
def test_gradcheck(stride, padding, dilation, relu):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)

    def draw(*sizes):
        return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)

    x, weight, scale, bias = draw(2, 6, 5, 3), draw(4, 3, 2, 3), draw(4).detach(), draw(4)
    sizes = anyop.conv_bias_act(
        x, weight, None, None, None, None, stride, padding, dilation, relu
    ).shape
    residual, mask = draw(*sizes), torch.rand(sizes) > 0.3
    assert torch.autograd.gradcheck(
        lambda x, w, b, r: anyop.conv_bias_act(
            x, w, scale, b, mask, r, stride, padding, dilation, relu
        ),
        (x, weight, bias, residual),
    )
