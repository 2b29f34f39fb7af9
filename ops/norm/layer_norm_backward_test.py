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


# Around the rows of a part in anyop/cpu/columns.h and the elements of a block in anyop/cpu/rows.h.
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("sums", [False, True])
def test_rows_side_by_side_have_the_bits_of_one_thread(dtype, sums):
    """Four rows are handled at once, what is left one by one: where threads begin must not change which."""
    random = np.random.default_rng(0)
    grad, x = (random.standard_normal((399, 1100)).astype(np.dtype(dtype)) for _ in range(2))
    unwanted = {} if sums else {"grad_weight": False, "grad_bias": False}
    before, found = anyop.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            anyop.set_num_threads(threads)
            results = anyop.layer_norm_backward(grad, x, **unwanted)
            found.append([r.tobytes() for r in results if r is not None])
    finally:
        anyop.set_num_threads(before)
    assert len(found[0]) == (3 if sums else 1) and all(f == found[0] for f in found)


def test_tiny_values_without_eps():
    """The inverse deviation, 1e20, has a cube that float32 does not hold."""
    random = np.random.default_rng(0)
    grad, x = (random.standard_normal((5, 70)).astype("f4") for _ in range(2))
    x *= np.float32(1e-18)
    found = anyop.layer_norm_backward(grad, x, None, 0.0)[0]
    expected = reference(grad.astype(float), x.astype(float), None, 0.0)[0]
    assert (np.abs(found - expected) <= 1e-5 * np.abs(expected).max()).all()


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
