# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.apex's losses by Apex's formulas."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.apex.contrib.focal_loss import focal_loss  # noqa: E402
from anyop.torch.apex.contrib.xentropy import SoftmaxCrossEntropyLoss  # noqa: E402
from anyop.torch.apex.extensions import focal_loss_cuda, xentropy_cuda  # noqa: E402

PADDING = 0


def smoothed(logits, labels, smoothing):
    """In float64, as label smoothing is defined; rows of the padding are 0."""
    logs = logits.double().log_softmax(-1)
    own = logs.gather(1, labels[:, None]).squeeze(1)
    loss = -(1 - smoothing) * own - smoothing * logs.mean(-1)
    return loss.masked_fill(labels == PADDING, 0)


@pytest.mark.parametrize("half_to_float", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("V", [60, 1031])
def test_cross_entropy(dtype, V, smoothing, half_to_float):
    """Apex's own test asks for 1e-3 (float16); here losses are rounded once, if at all."""
    torch.manual_seed(V)
    logits = (torch.randn(37, V) * 5).to(dtype).requires_grad_()
    labels = torch.randint(1, V, (37,))
    labels[::6] = PADDING
    loss = SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing, PADDING, half_to_float)
    assert loss.dtype is (torch.float32 if half_to_float else dtype)
    exact = smoothed(logits, labels, smoothing)
    unit = 2e-6 if half_to_float else torch.finfo(dtype).eps
    torch.testing.assert_close(loss.double(), exact, rtol=unit, atol=2e-6)
    (found,) = torch.autograd.grad(loss.float().sum(), logits)
    (expected,) = torch.autograd.grad(exact.sum(), logits)
    assert found.dtype is dtype and not found[labels == PADDING].any()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected.double(), rtol=4 * eps, atol=max(eps, 2e-6))


def test_raw_cross_entropy():
    """Every label is a class there; the gradient's rows are those that grad_loss gives."""
    logits, labels = torch.randn(9, 33, dtype=torch.float16), torch.arange(9) % 5
    losses, lse = xentropy_cuda.forward(logits, labels, 0.1, True)
    exact = logits.double().requires_grad_()
    whole = torch.nn.functional.cross_entropy(exact, labels, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(losses.double(), whole, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(lse.double(), exact.logsumexp(-1), rtol=2e-6, atol=2e-6)
    given = torch.rand(9)
    found = xentropy_cuda.backward(given, logits, lse, labels, 0.1)
    (expected,) = torch.autograd.grad((whole * given).sum(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=1e-5)
    with pytest.raises(IndexError, match="target"):
        xentropy_cuda.forward(logits, labels - 100, 0.0, False)


def focal(logits, targets, positives, classes, alpha, gamma, smoothing):
    """In float64, by binary cross entropies of smoothed targets; as Apex's own test has it."""
    counted = logits.double()[..., :classes]
    hot = torch.nn.functional.one_hot(targets.clamp(min=0), classes) * (targets >= 0)[..., None]
    p = counted.sigmoid()
    smooth = hot * (1 - smoothing) + smoothing / 2
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(
        counted, smooth.double(), reduction="none"
    )
    right = torch.where(hot == 1, p, 1 - p)
    weight = torch.where(hot == 1, alpha, 1 - alpha)
    loss = weight * (1 - right) ** gamma * entropy
    return loss[targets != -2].sum() / positives


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_focal_loss(dtype, smoothing):
    torch.manual_seed(0)
    logits = torch.randn(4, 50, 88).to(dtype).requires_grad_()
    targets, positives = torch.randint(-2, 81, (4, 50)), torch.tensor([123.0])
    loss = focal_loss(logits, targets, positives, 81, 0.24, 2.0, smoothing)
    exact = focal(logits, targets, 123, 81, 0.24, 2.0, smoothing)
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=2e-6, atol=0)
    (found,) = torch.autograd.grad(loss * 3, logits)
    (expected,) = torch.autograd.grad(exact * 3, logits)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=4 * eps, atol=4 * eps / 123)
    raw, partial = focal_loss_cuda.forward(logits, targets, positives, 81, 0.24, 2.0, smoothing)
    assert torch.equal(raw, loss)
    again = focal_loss_cuda.backward(torch.tensor([3.0]), partial, positives)
    assert again.data_ptr() == partial.data_ptr() and torch.equal(again, found)
