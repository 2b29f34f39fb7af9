# SPDX-License-Identifier: Apache-2.0
"""rms_norm_from_output_backward in float64; a factor of 0."""

import anyop
import numpy as np


def reference(grad_out, out, rstd, weight, weight_offset):
    factor = (np.ones(out.shape[-1]) if weight is None else weight) + weight_offset
    with np.errstate(all="ignore"):
        normal = np.where(factor == 0, 0, out / np.where(factor == 0, 1, factor))
        grad_x = rstd * (grad_out * factor - normal * (grad_out * out).mean(-1, keepdims=True))
        return grad_x, (grad_out * normal).sum(tuple(range(out.ndim - 1)))


def test_where_the_factor_is_0_what_was_normalised_is_lost():
    """The other columns have their true gradients: what is lost was multiplied by 0."""
    random = np.random.default_rng(0)
    grad, x = (random.standard_normal((5, 40)).astype(np.float32) for _ in range(2))
    weight = random.standard_normal(40).astype(np.float32)
    weight[[3, 39]] = 0
    grad_x, grad_weight = anyop.rms_norm_backward(grad, x, weight)
    out, rstd = anyop.rms_norm_from_output(x, weight)
    found_x, found_weight = anyop.rms_norm_from_output_backward(grad, out, rstd, weight)
    others = weight != 0
    np.testing.assert_allclose(found_x[:, others], grad_x[:, others], 1e-4, 1e-5)
    np.testing.assert_allclose(found_weight[others], grad_weight[others], 1e-4, 1e-5)
    assert (found_weight[~others] == 0).all() and (found_x[:, ~others] == 0).all()
