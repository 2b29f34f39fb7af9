# SPDX-License-Identifier: Apache-2.0
"""layer_norm_from_output_backward in float64; a factor of 0."""

import anyop
import numpy as np


def reference(grad_out, out, rstd, weight, bias, weight_offset):
    factor = (np.ones(out.shape[-1]) if weight is None else weight) + weight_offset
    scaled = out if bias is None else out - bias
    leading = tuple(range(out.ndim - 1))
    with np.errstate(all="ignore"):
        normal = np.where(factor == 0, 0, scaled / np.where(factor == 0, 1, factor))
        grad = grad_out * factor
        share = (grad_out * scaled).mean(-1, keepdims=True)
        grad_x = rstd * (grad - grad.mean(-1, keepdims=True) - normal * share)
        return grad_x, (grad_out * normal).sum(leading), grad_out.sum(leading)


def test_where_the_factor_is_0_what_was_normalised_is_lost():
    """The other columns have their true gradients: what is lost was multiplied by 0."""
    random = np.random.default_rng(0)
    grad, x = (random.standard_normal((5, 40)).astype(np.float32) for _ in range(2))
    weight, bias = random.standard_normal((2, 40)).astype(np.float32)
    weight[[3, 39]] = 0
    expected = anyop.layer_norm_backward(grad, x, weight)
    out, rstd = anyop.layer_norm_from_output(x, weight, bias)
    found = anyop.layer_norm_from_output_backward(grad, out, rstd, weight, bias)
    others = weight != 0
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours[..., others], theirs[..., others], 1e-4, 1e-4)
    assert (found[1][~others] == 0).all()
    np.testing.assert_array_equal(found[2], expected[2])
