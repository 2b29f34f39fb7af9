# SPDX-License-Identifier: Apache-2.0
"""cross_entropy in float64; torch's own, targets outside, extreme logits, gradients from torch and JAX."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest

VALUES = {"ignore_index": -100, "label_smoothing": 0.1, "z_loss": 0.01}


def reference(x, target, ignore_index, label_smoothing, z_loss):
    with np.errstate(all="ignore"):
        most = x.max(-1, keepdims=True)
        base = np.where(most == -np.inf, 0, most)
        lse = (base + np.log(np.exp(x - base).sum(-1, keepdims=True)))[..., 0]
        wanted = np.where(target == ignore_index, 0, target)[..., None]
        loss = lse - (1 - label_smoothing) * np.take_along_axis(x, wanted, -1)[..., 0]
        loss -= label_smoothing * x.mean(-1) if label_smoothing else 0
        loss += z_loss * lse**2 if z_loss else 0
    return np.where(target == ignore_index, 0, loss), lse


def made(rows, V, dtype="float32"):
    random = np.random.default_rng(rows)
    x = (3 * random.standard_normal((rows, V))).astype(dtype)
    target = random.integers(0, V, rows)
    target[::5] = -100
    return x, target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("V", [1023, 1025, 8193, 32000])
def test_several_blocks(dtype, V):
    """Rows that are converted at once and block by block; a part of a wider tensor."""
    x, target = made(7, V + 9, dtype)
    target %= V
    x[3, V - 1] = 40
    found = anyop.cross_entropy(x[:, :V], target, **VALUES)
    exact = reference(x[:, :V].astype(float), target, **VALUES)
    limit = 1e-14 if dtype == "float64" else 1e-6  # of lse, some 15
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=limit, atol=5 * limit)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("place", [0, 5])
def test_target_outside_is_an_index_error(index, place):
    x, target = made(6, 4)
    target = (target % 4).astype(index)
    target[place] = 4
    loss, lse = np.full((2, 6), 7, np.float32)
    message = rf"^cross_entropy: target\[{place}\] is 4, expected 0 <= target < 4, or -1 to ignore"
    with pytest.raises(IndexError, match=message):
        anyop.cross_entropy(x, target, ignore_index=-1, loss=loss, lse=lse)
    assert (loss == 7).all() and (lse == 7).all()
    target[place] = -1
    assert anyop.cross_entropy(x, target, ignore_index=-1)[0][place] == 0


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, np.nan])
def test_smoothing_is_a_share(smoothing):
    x, target = made(3, 4)
    with pytest.raises(ValueError, match=r"^cross_entropy: label_smoothing is "):
        anyop.cross_entropy(x, target % 4, label_smoothing=smoothing)


def test_extreme_logits():
    least = -np.inf
    x = np.array([[1e30, 0], [3e38, 3e38], [least, 0], [least, least], [np.nan, 0]], np.float32)
    loss, lse = anyop.cross_entropy(x, np.array([0, 1, 1, 0, 1]))
    np.testing.assert_allclose(lse, [1e30, 3e38, 0, least, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(loss[[0, 2]], 0)
    assert np.isnan(loss[3:]).all()


def test_no_classes_and_no_rows():
    loss, lse = anyop.cross_entropy(np.zeros((2, 0), np.float32), np.array([-100, -100]))
    assert (loss == 0).all() and (lse == -np.inf).all()
    assert anyop.cross_entropy(np.zeros((0, 3), np.float32), np.zeros(0, int))[0].shape == (0,)


def test_the_same_bits_for_any_number_of_threads():
    (x, target), before, found = made(300, 3000, "bfloat16"), anyop.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(anyop.cross_entropy(x, target, **VALUES))
    finally:
        anyop.set_num_threads(before)
    for loss, lse in found[1:]:
        np.testing.assert_array_equal(loss, found[0][0])
        np.testing.assert_array_equal(lse, found[0][1])


@pytest.mark.parametrize("values", [{}, VALUES])
def test_gradients_from_torch(values):
    """gradcheck in float64 of both results; float32 beside torch's own."""
    torch = pytest.importorskip("torch")
    import anyop.torch

    target = torch.tensor([[1, -100, 0], [4, 2, 1]])
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: anyop.cross_entropy(x, target, **values), x)
    single = x.detach().float().requires_grad_()
    smoothing = values.get("label_smoothing", 0.0)
    theirs = torch.nn.functional.cross_entropy(
        single.view(-1, 5), target.view(-1), reduction="none", label_smoothing=smoothing
    )
    loss, _ = anyop.cross_entropy(single, target, **values)
    counts = (target != -100).view(-1)
    theirs = theirs + values.get("z_loss", 0.0) * counts * single.logsumexp(-1).view(-1) ** 2
    torch.testing.assert_close(loss.view(-1), theirs, rtol=2e-6, atol=2e-6)
    pairs = (torch.autograd.grad(one.sum(), single)[0] for one in (loss, theirs))
    torch.testing.assert_close(*pairs, rtol=2e-6, atol=2e-6)


def test_gradients_from_jax():
    jax = pytest.importorskip("jax")
    import anyop.jax

    x, target = made(6, 5)
    x, target = jax.numpy.asarray(x), jax.numpy.asarray(target.astype(np.int32))

    def theirs(x):
        own = jax.numpy.take_along_axis(x, jax.numpy.maximum(target, 0)[:, None], -1)[:, 0]
        return jax.numpy.where(target < 0, 0, jax.nn.logsumexp(x, -1) - own).sum()

    mine = jax.jit(jax.grad(lambda x: anyop.cross_entropy(x, target)[0].sum()))(x)
    np.testing.assert_allclose(mine, jax.grad(theirs)(x), rtol=2e-6, atol=2e-6)
