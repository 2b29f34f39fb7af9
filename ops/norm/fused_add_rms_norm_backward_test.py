# SPDX-License-Identifier: Apache-2.0
"""fused_add_rms_norm_backward in float64; absent gradients are 0."""

import anyop
import numpy as np


def reference(sum, grad_out, grad_sum, weight, eps, weight_offset):
    leading = tuple(range(sum.ndim - 1))
    more = np.zeros_like(sum) if grad_sum is None else grad_sum
    if grad_out is None:
        return more, np.zeros(sum.shape[-1])
    with np.errstate(all="ignore"):
        centred = sum
        scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
        normal = centred * scale
        grad = grad_out * ((1 if weight is None else weight) + weight_offset)
        share = normal * (grad * normal).mean(-1, keepdims=True)
        grad_x = scale * (grad - share) + more
        return grad_x, (grad_out * normal).sum(leading)


def test_it_is_the_gradient_of_both_parts():
    random = np.random.default_rng(0)
    total, grad, more = (random.standard_normal((70, 9)).astype("f4") for _ in range(3))
    weight = random.standard_normal(9).astype("f4")
    expected = anyop.rms_norm_backward(grad, total, weight)
    found = anyop.fused_add_rms_norm_backward(total, grad, None, weight)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    found = anyop.fused_add_rms_norm_backward(total, grad, more, weight)
    np.testing.assert_allclose(found[0], expected[0] + more, 1e-6, 1e-6)
    np.testing.assert_array_equal(found[1], expected[1])
    found = anyop.fused_add_rms_norm_backward(total, None, more, weight)
    np.testing.assert_array_equal(found[0], more)
    assert (found[1] == 0).all() and found[1].shape == (9,)
