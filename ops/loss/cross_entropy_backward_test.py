# SPDX-License-Identifier: Apache-2.0
"""cross_entropy_backward in float64; in place, ignored rows, targets outside."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest

VALUES = {"ignore_index": -100, "label_smoothing": 0.1, "z_loss": 0.01}


def reference(x, target, lse, grad_loss, grad_lse, ignore_index, label_smoothing, z_loss):
    zeros = np.zeros(target.shape)
    given = zeros if grad_loss is None else np.where(target == ignore_index, 0, grad_loss)
    of_lse = zeros if grad_lse is None else grad_lse
    V = x.shape[-1]
    with np.errstate(all="ignore"):
        p = np.exp(x - lse[..., None])
        of_sum = (given * (1 + 2 * z_loss * lse) if z_loss else given) + of_lse
        g = of_sum[..., None] * p - (given * label_smoothing / V)[..., None]
        g -= (target[..., None] == np.arange(V)) * (given * (1 - label_smoothing))[..., None]
        return np.where(((given == 0) & (of_lse == 0))[..., None], 0, g)


def made(rows, V, dtype="float32"):
    random = np.random.default_rng(rows)
    x = random.standard_normal((rows, V)).astype(dtype)
    target = random.integers(0, V, rows)
    target[::5] = -100
    lse = anyop.cross_entropy(x, target)[1]
    return x, target, lse, *(random.standard_normal(rows).astype(lse.dtype) for _ in range(2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("V", [5, 1025, 8193])
def test_in_place(dtype, V):
    """The same bits as elsewhere; float64's gradient but for a rounding."""
    inputs = made(13, V, dtype)
    found = anyop.cross_entropy_backward(*inputs, **VALUES)
    exact = reference(*(a if a.dtype == int else a.astype(float) for a in inputs), **VALUES)
    unit = {"float32": 1e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(found.astype(float), exact, rtol=unit, atol=unit)
    x = inputs[0].copy()
    assert anyop.cross_entropy_backward(x, *inputs[1:], **VALUES, grad_x=x) is x
    assert x.tobytes() == found.tobytes()


def test_rows_without_a_gradient_are_zero():
    """Whatever they hold; of lse an ignored row has one."""
    x, target, lse, grad_loss, grad_lse = made(10, 7)
    grad_loss[target == -100] = np.nan
    x[0] = np.inf
    found = anyop.cross_entropy_backward(x, target, lse, grad_loss)
    assert (found[target == -100] == 0).all() and np.isfinite(found).all()
    assert (anyop.cross_entropy_backward(x, target, lse, None, grad_lse)[5] != 0).all()
    assert not anyop.cross_entropy_backward(x, target, lse).any()


def test_target_outside_is_an_index_error():
    x, target, lse, grad_loss, _ = made(10, 7)
    target[4] = 7
    with pytest.raises(IndexError, match=r"target\[4\] is 7, expected 0 <= target < 7"):
        anyop.cross_entropy_backward(x, target, lse, grad_loss, grad_x=x)
