# SPDX-License-Identifier: Apache-2.0
"""linear_cross_entropy_backward in float64; every choice of gradients, several blocks of classes."""

import itertools

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(
    x,
    weight,
    target,
    lse,
    grad_loss,
    grad_lse,
    bias,
    ignore_index,
    label_smoothing,
    softcap,
    z_loss,
):
    zeros = np.zeros(target.shape)
    given = zeros if grad_loss is None else np.where(target == ignore_index, 0, grad_loss)
    of_lse = zeros if grad_lse is None else grad_lse
    rows = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        logits = x @ weight.T + (0 if bias is None else bias)
        t = np.tanh(logits / softcap) if softcap else np.zeros_like(logits)
        p = np.exp((softcap * t if softcap else logits) - lse[..., None])
        of_sum = (given * (1 + 2 * z_loss * lse) if z_loss else given) + of_lse
        g = of_sum[..., None] * p - (given * label_smoothing / len(weight))[..., None]
        g -= (target[..., None] == np.arange(len(weight))) * (given * (1 - label_smoothing))[
            ..., None
        ]
        g = np.where(((given == 0) & (of_lse == 0))[..., None], 0, g * (1 - t * t))
        return g @ weight, np.tensordot(g, x, (rows, rows)), g.sum(rows)


def made(rows, V, K, dtype="float32"):
    random = np.random.default_rng(rows)
    x, weight, bias = (random.uniform(-1, 1, s).astype(dtype) for s in ((rows, K), (V, K), (V,)))
    target = random.integers(0, V, rows)
    target[::5] = -100
    lse = anyop.linear_cross_entropy(x, weight, target, bias, softcap=9.0)[1]
    gradients = [random.standard_normal(rows).astype(lse.dtype) for _ in range(2)]
    return x, weight, target, lse, *gradients, bias


VALUES = {"ignore_index": -100, "label_smoothing": 0.1, "softcap": 9.0, "z_loss": 0.01}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("rows", "V"), [(3, 2500), (3000, 1200), (70, 1024)])
def test_every_choice_of_gradients(dtype, rows, V):
    """3,000 rows have blocks of 1,024 classes, so that parts of grad_x are added."""
    inputs = made(rows, V, 5, dtype)
    whole = anyop.linear_cross_entropy_backward(*inputs, **VALUES)
    wide = [a if a.dtype == np.int64 else a.astype(float) for a in inputs]
    # Of each of n terms, rounded to 16 bits before it is multiplied, half a unit; sums of float32.
    unit = {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 1e-14}[dtype]
    exact = reference(*wide, **VALUES)
    sizes = reference(*wide[:4], *(np.abs(g) for g in wide[4:6]), wide[6], **VALUES)
    for found, expected, size in zip(whole, exact, sizes, strict=True):
        assert found.dtype == inputs[0].dtype
        error = np.abs(found.astype(float) - expected)
        assert (error <= unit * (2 + np.abs(expected) + np.sqrt(np.abs(size).max()))).all()
    names = ["grad_x", "grad_weight", "grad_bias"]
    for wanted in (
        itertools.product([False, True], repeat=3) if rows == 3 else [(True, False, False)]
    ):
        unwanted = {name: False for name, keep in zip(names, wanted, strict=True) if not keep}
        some = anyop.linear_cross_entropy_backward(*inputs, **VALUES, **unwanted)
        for found, one, keep in zip(some, whole, wanted, strict=True):
            assert (found is not None) == keep
            if keep:
                np.testing.assert_array_equal(found, one)


def test_ignored_rows_have_no_gradient():
    """Not even of a loss that is not finite; but one of lse."""
    x, weight, target, lse, grad_loss, grad_lse, bias = made(10, 7, 3)
    grad_loss[target == -100] = np.nan
    x[0] = 1e30
    found = anyop.linear_cross_entropy_backward(x, weight, target, lse, grad_loss, None, bias)
    assert (found[0][target == -100] == 0).all() and all(np.isfinite(f).all() for f in found)
    target[:] = -100
    found = anyop.linear_cross_entropy_backward(x, weight, target, lse, None, grad_lse, bias)
    assert (found[0][1:] != 0).all()
    assert not any(f.any() for f in anyop.linear_cross_entropy_backward(x, weight, target, lse))


def test_target_outside_is_an_index_error():
    x, weight, target, lse, grad_loss, *_ = made(10, 7, 3)
    target[4] = 7
    with pytest.raises(IndexError, match=r"target\[4\] is 7, expected 0 <= target < 7"):
        anyop.linear_cross_entropy_backward(x, weight, target, lse, grad_loss)


def test_the_same_bits_for_any_number_of_threads():
    inputs, before, found = made(600, 9000, 24), anyop.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(anyop.linear_cross_entropy_backward(*inputs, **VALUES))
    finally:
        anyop.set_num_threads(before)
    for gradients in found[1:]:
        for one, other in zip(gradients, found[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("values", [{}, VALUES])
def test_gradients_from_torch(values):
    """gradcheck in float64, several dimensions; float32 beside torch's own."""
    torch = pytest.importorskip("torch")
    import anyop.torch

    target = torch.tensor([[1, -100, 0], [4, 2, 1]])
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True)
               for s in ((2, 3, 4), (5, 4), (5,))]  # fmt: skip

    def both(x, weight, bias):
        return anyop.linear_cross_entropy(x, weight, target, bias, **values)

    assert torch.autograd.gradcheck(both, tensors)
    if values:
        return
    x, weight, bias = (t.detach().float().requires_grad_() for t in tensors)
    logits = torch.nn.functional.linear(x, weight, bias).view(-1, 5)
    theirs = torch.nn.functional.cross_entropy(logits, target.view(-1))
    mine = both(x, weight, bias)[0].sum() / (target != -100).sum()
    torch.testing.assert_close(mine, theirs)
    pairs = (torch.autograd.grad(loss, (x, weight, bias)) for loss in (mine, theirs))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other)
