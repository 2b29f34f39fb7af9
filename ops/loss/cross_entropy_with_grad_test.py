# SPDX-License-Identifier: Apache-2.0
"""cross_entropy_with_grad in float64; in place, ignored rows that hold anything, targets outside."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest

VALUES = {"ignore_index": -100, "label_smoothing": 0.1, "z_loss": 0.01}


def reference(x, target, scale, ignore_index, label_smoothing, z_loss):
    counts, V = target != ignore_index, x.shape[-1]
    with np.errstate(all="ignore"):
        most = x.max(-1, keepdims=True)
        lse = most + np.log(np.exp(x - most).sum(-1, keepdims=True))
        own = np.take_along_axis(x, np.where(counts, target, 0)[..., None], -1)
        loss = lse - (1 - label_smoothing) * own
        loss -= label_smoothing * x.mean(-1, keepdims=True) if label_smoothing else 0
        loss += z_loss * lse**2 if z_loss else 0
        of_sum = 1 + 2 * z_loss * lse if z_loss else 1
        g = of_sum * np.exp(x - most) / np.exp(x - most).sum(-1, keepdims=True)
        g -= label_smoothing / V + (1 - label_smoothing) * (target[..., None] == np.arange(V))
        g *= 1 if scale is None else scale
    return np.where(counts, loss[..., 0], 0), np.where(counts[..., None], g, 0)


def made(rows, V, dtype="float32"):
    random = np.random.default_rng(rows)
    x = (2 * random.standard_normal((rows, V))).astype(dtype)
    target = random.integers(0, V, rows)
    target[::5] = -100
    return x, target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("V", [5, 1025, 8193])
@pytest.mark.parametrize("scale", [None, 0.25])
def test_in_place(dtype, V, scale):
    """Also where x is a part of a wider tensor; losses as cross_entropy's."""
    whole, target = made(13, V + 3, dtype)
    whole[1, V - 1] = 30
    target[target >= V] = V - 1
    x, before = whole[:, :V], whole.copy()
    if scale is not None:
        scale = np.array(scale, anyop.cross_entropy(x, target)[0].dtype)
    exact = reference(x.astype(float), target, scale, **VALUES)
    found = anyop.cross_entropy_with_grad(x, target, scale, **VALUES)
    unit = {"float32": 1e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(found[1].astype(float), exact[1], rtol=unit, atol=min(unit, 1e-6))
    np.testing.assert_array_equal(found[0], anyop.cross_entropy(x, target, **VALUES)[0])
    loss, grad_x = anyop.cross_entropy_with_grad(x, target, scale, **VALUES, grad_x=x)
    assert grad_x is x and loss.tobytes() == found[0].tobytes()
    assert x.tobytes() == found[1].tobytes() and (whole[:, V:] == before[:, V:]).all()


def test_ignored_rows_may_hold_anything():
    x, target = made(10, 7)
    x[0], x[5, 2] = np.nan, np.inf
    loss, grad_x = anyop.cross_entropy_with_grad(x, target, grad_x=x)
    assert (grad_x[[0, 5]] == 0).all() and (loss[[0, 5]] == 0).all() and np.isfinite(loss).all()


def test_target_outside_is_an_index_error():
    """Before anything is written."""
    x, target = made(10, 7)
    target[4], before = -7, x.copy()
    with pytest.raises(IndexError, match=r"target\[4\] is -7, expected 0 <= target < 7"):
        anyop.cross_entropy_with_grad(x, target, grad_x=x)
    np.testing.assert_array_equal(x, before)


def test_the_same_bits_for_any_number_of_threads():
    (x, target), before, found = made(300, 3000, "bfloat16"), anyop.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(anyop.cross_entropy_with_grad(x, target, **VALUES))
    finally:
        anyop.set_num_threads(before)
    for results in found[1:]:
        assert [r.tobytes() for r in results] == [r.tobytes() for r in found[0]]
