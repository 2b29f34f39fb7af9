# SPDX-License-Identifier: Apache-2.0
"""focal_loss in float64; extreme logits, targets outside, no number of threads, gradients from torch."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, target, num_positives, classes, alpha, gamma, smoothing):
    V = x.shape[-1]
    own = target[..., None] == np.arange(V)
    counted = (target != -2)[..., None] & (np.arange(V) < classes)
    sign = np.where(own, -1, 1)
    z, weight = sign * x, np.where(own, alpha, 1 - alpha)
    with np.errstate(all="ignore"):
        above, below = np.logaddexp(0, z), np.logaddexp(0, -z)  # -log(1 - q), -log(q)
        factor = weight * np.exp(-gamma * below)
        entropy = above - smoothing / 2 * z
        slope = gamma * np.exp(-above) * entropy + np.exp(-below) - smoothing / 2
    loss = np.where(counted, factor * entropy, 0).sum() / num_positives
    return loss, np.where(counted, sign * factor * slope, 0)


def made(rows, V, classes, dtype="float32"):
    random = np.random.default_rng(rows)
    x = (3 * random.standard_normal((rows, V))).astype(dtype)
    wide = np.float64 if dtype == "float64" else np.float32
    return x, random.integers(-2, classes, rows), np.array(7, wide), classes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("rows", "V", "classes"), [(500, 88, 81), (3, 2500, 2300), (70, 8, 8)])
def test_many_rows(dtype, rows, V, classes):
    inputs = made(rows, V, classes, dtype)
    values = {"alpha": 0.25, "gamma": 2.0, "smoothing": 0.1}
    loss, partial = anyop.focal_loss(*inputs, **values)
    exact = reference(inputs[0].astype(float), *inputs[1:], **values)
    unit = {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(loss, exact[0], rtol=1e-14 if dtype == "float64" else 2e-6)
    np.testing.assert_allclose(partial.astype(float), exact[1], rtol=unit, atol=min(unit, 2e-6))


def test_extreme_logits():
    """Where a probability is 0 or 1 in float32, losses are still right."""
    x = np.array([[-200, 200, -30, 30]], np.float32)
    for target in range(4):
        inputs = x, np.array([target]), np.float32(1).reshape(()), 4
        found = anyop.focal_loss(*inputs, 0.25, 2.0)
        exact = reference(x.astype(float), *inputs[1:], 0.25, 2.0, 0.0)
        np.testing.assert_allclose(found[0], exact[0], rtol=1e-6)
        np.testing.assert_allclose(found[1], exact[1], rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("target", [-3, 4])
def test_target_outside_is_an_index_error(target):
    x, targets, positives, _ = made(6, 5, 4)
    targets[4] = target
    message = rf"^focal_loss: target\[4\] is {target}, expected -1 <= target < 4, or -2 to ignore"
    with pytest.raises(IndexError, match=message):
        anyop.focal_loss(x, targets, positives, 4)


@pytest.mark.parametrize("number", [{"gamma": -1.0}, {"smoothing": 2.0}, {"alpha": np.nan}])
def test_numbers_that_make_no_loss(number):
    with pytest.raises(ValueError, match=f"^focal_loss: {next(iter(number))} is "):
        anyop.focal_loss(*made(6, 5, 4), **number)


def test_the_same_bits_for_any_number_of_threads():
    inputs, before, found = made(3000, 88, 80), anyop.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(anyop.focal_loss(*inputs))
    finally:
        anyop.set_num_threads(before)
    for results in found[1:]:
        assert [r.tobytes() for r in results] == [r.tobytes() for r in found[0]]


def test_gradients_from_torch():
    """gradcheck in float64."""
    torch = pytest.importorskip("torch")
    import anyop.torch

    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    target, positives = torch.tensor([[1, -2, 0], [3, -1, 1]]), torch.tensor(3.0).double()
    assert torch.autograd.gradcheck(
        lambda x: anyop.focal_loss(x, target, positives, 4, 0.3, 1.5, smoothing=0.1)[0], x
    )
