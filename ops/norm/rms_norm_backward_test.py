# SPDX-License-Identifier: Apache-2.0
"""rms_norm_backward in float64; many rows, and either gradient alone."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(grad_out, x, weight, eps, weight_offset=0.0):
    with np.errstate(all="ignore"):
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        normal = x * scale
        grad = grad_out * ((1 if weight is None else weight) + weight_offset)
        grad_x = scale * (grad - normal * (grad * normal).mean(-1, keepdims=True))
        return grad_x, (grad_out * normal).sum(tuple(range(x.ndim - 1)))


# Around the rows of a part in anyop/cpu/columns.h and the elements of a block in anyop/cpu/rows.h.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("rows", "D"), [(31, 1025), (32, 8193), (33, 7), (3000, 130)])
def test_sizes_around_parts_and_blocks(dtype, rows, D):
    dtype = np.dtype(dtype)
    random = np.random.default_rng(D)
    grad, x, weight = (
        random.standard_normal(s).astype(dtype) for s in [(rows, D), (rows, D), (D,)]
    )
    found = anyop.rms_norm_backward(grad, x, weight)
    # Products are rounded to 6e-8; the errors of many add up as their number's root. Without FMA, which
    # processors before 2013 lack, NumPy in float32 is off by 2.1e-6 in 32 rows, too.
    float32 = 3e-6 * max(1, (rows / 100) ** 0.5)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": float32, "float64": 1e-13}[dtype.name]
    exact = reference(*(v.astype(float) for v in (grad, x, weight)), 1e-6)
    for result, expected in zip(found, exact, strict=True):
        assert result.dtype == dtype
        assert (np.abs(result.astype(float) - expected) <= limit * (1 + np.abs(expected))).all()


def test_either_gradient_alone():
    random = np.random.default_rng(0)
    grad, x, weight = (random.standard_normal(s).astype("f4") for s in [(70, 9), (70, 9), (9,)])
    grad_x, grad_weight = anyop.rms_norm_backward(grad, x, weight)
    only_x = anyop.rms_norm_backward(grad, x, weight, grad_weight=False)
    only_weight = anyop.rms_norm_backward(grad, x, weight, grad_x=False)
    assert only_x[1] is None and only_weight[0] is None
    np.testing.assert_array_equal(only_x[0], grad_x)
    np.testing.assert_array_equal(only_weight[1], grad_weight)
