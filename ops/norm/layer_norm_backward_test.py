# SPDX-License-Identifier: Apache-2.0
"""layer_norm_backward in float64; many rows, every choice of gradients."""

import itertools

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(grad_out, x, weight, eps, weight_offset=0.0):
    leading = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        centred = x - x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
        normal = centred * scale
        grad = grad_out * ((1 if weight is None else weight) + weight_offset)
        mean, share = grad.mean(-1, keepdims=True), (grad * normal).mean(-1, keepdims=True)
        grad_x = scale * (grad - mean - normal * share)
        return grad_x, (grad_out * normal).sum(leading), grad_out.sum(leading)


# Around the rows of a part in anyop/cpu_columns.h and the elements of a block in anyop/cpu_rows.h.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("rows", "D"), [(31, 1025), (32, 8193), (33, 70), (3000, 130)])
@pytest.mark.parametrize("with_weight", [False, True])
def test_sizes_around_parts_and_blocks(dtype, rows, D, with_weight):
    dtype = np.dtype(dtype)
    random = np.random.default_rng(D)
    grad, x = (random.standard_normal((rows, D)).astype(dtype) for _ in range(2))
    weight = random.standard_normal(D).astype(dtype) if with_weight else None
    found = anyop.layer_norm_backward(grad, x, weight)
    exact = [None if v is None else v.astype(float) for v in (grad, x, weight)]
    # Products are rounded to 6e-8; the errors of many add up as their number's root.
    float32 = 2e-6 * max(1, (rows / 100) ** 0.5)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": float32, "float64": 1e-13}[dtype.name]
    for result, expected in zip(found, reference(*exact, 1e-5), strict=True):
        assert result.dtype == dtype
        assert (np.abs(result.astype(float) - expected) <= limit * (1 + np.abs(expected))).all()


def test_every_choice_of_gradients():
    random = np.random.default_rng(0)
    grad, x, weight = (random.standard_normal(s).astype("f4") for s in [(70, 9), (70, 9), (9,)])
    names = ["grad_x", "grad_weight", "grad_bias"]
    whole = anyop.layer_norm_backward(grad, x, weight)
    for wanted in itertools.product([False, True], repeat=3):
        unwanted = {name: False for name, keep in zip(names, wanted, strict=True) if not keep}
        found = anyop.layer_norm_backward(grad, x, weight, **unwanted)
        for result, expected, keep in zip(found, whole, wanted, strict=True):
            assert (result is not None) == keep
            if keep:
                np.testing.assert_array_equal(result, expected)
