# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.nn.CrossEntropyLoss beside torch's; in place: what is overwritten, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.torch.nn import CrossEntropyLoss  # noqa: E402

V = 41


def both(dtype=torch.float32, shape=(2, 5)):
    """Logits that are no leaf, and the leaf; classes, of which some are ignored."""
    torch.manual_seed(0)
    leaf = torch.randn(*shape, V, dtype=dtype, requires_grad=True)
    target = torch.randint(0, V, shape)
    target[..., 1] = -100
    return leaf * 3, leaf, target


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_as_torch(reduction, inplace, factor):
    """factor: what comes from above, as a GradScaler's."""
    logits, leaf, target = both()
    values = {"reduction": reduction, "label_smoothing": 0.1}
    theirs = torch.nn.CrossEntropyLoss(**values)(logits.view(-1, V).double(), target.view(-1))
    (expected,) = torch.autograd.grad(theirs.sum() * factor, leaf, retain_graph=True)
    mine = CrossEntropyLoss(**values, inplace=inplace)(logits.view(-1, V), target.view(-1))
    torch.testing.assert_close(mine.double(), theirs, rtol=2e-6, atol=2e-6)
    (found,) = torch.autograd.grad(mine.sum() * factor, leaf)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_z_loss_and_dtypes(dtype):
    for inplace in (False, True):
        logits, leaf, target = both(dtype)
        mine = CrossEntropyLoss(z_loss=0.01, inplace=inplace)(logits.flatten(0, 1), target.view(-1))
        wide = leaf.detach().double().requires_grad_()
        exact = (wide.to(dtype) * 3).double() if dtype is not torch.float64 else wide * 3
        lse = exact.logsumexp(-1)
        counts = target != -100
        plain = torch.nn.functional.cross_entropy(exact.flatten(0, 1), target.view(-1))
        theirs = plain + 0.01 * (lse.square() * counts).sum() / counts.sum()
        assert mine.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-6, atol=2e-6)
        (found,) = torch.autograd.grad(mine, leaf)
        (expected,) = torch.autograd.grad(theirs, wide)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected, rtol=6 * eps, atol=6 * eps)


def test_classes_in_the_second_dimension():
    """As torch has them of images; a copy of the logits is overwritten, they are not."""
    images, target = torch.randn(2, V, 3, 4), torch.randint(0, V, (2, 3, 4))
    for inplace in (False, True):
        leaf = images.clone().requires_grad_()
        mine = CrossEntropyLoss(inplace=inplace)(leaf, target)
        theirs = torch.nn.functional.cross_entropy(images.requires_grad_(), target)
        torch.testing.assert_close(mine, theirs)
        pair = torch.autograd.grad(mine, leaf)[0], torch.autograd.grad(theirs, images)[0]
        torch.testing.assert_close(*pair)
        assert torch.equal(leaf, images)


def test_logits_hold_their_gradient():
    """In the logits' own memory; without a gradient they keep their values."""
    logits, _, target = both(shape=(6,))
    before, loss = logits.detach().clone(), CrossEntropyLoss(inplace=True)
    with torch.no_grad():
        loss(logits, target)
        loss(logits.detach(), target)
    assert torch.equal(logits, before)
    memory, kept = logits.data_ptr(), []
    logits.register_hook(kept.append)
    loss(logits, target).backward()
    assert kept[0].data_ptr() == memory and torch.equal(kept[0], logits)


def test_who_needs_the_logits_is_told():
    """softmax saves its result, exp its own; a product of the logits saves them."""
    logits, leaf, target = both(shape=(6,))
    squares = logits.square().sum()
    whole = CrossEntropyLoss(inplace=True)(logits, target) + squares
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        whole.backward()
    with pytest.raises(RuntimeError, match="a leaf that requires a gradient"):
        CrossEntropyLoss(inplace=True)(leaf, target)
    with pytest.raises(RuntimeError, match="a leaf that requires a gradient"):
        CrossEntropyLoss(inplace=True)(leaf.view(6, V), target)


def test_one_backward_and_no_writes_before_it():
    logits, _, target = both(shape=(6,))
    mine = CrossEntropyLoss(inplace=True)(logits, target)
    mine.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has one backward pass"):
        mine.backward()
    logits, _, target = both(shape=(6,))
    mine = CrossEntropyLoss(inplace=True)(logits, target)
    with torch.no_grad():
        logits.zero_()
    with pytest.raises(RuntimeError, match="were written to before backward"):
        mine.backward()


def test_what_it_does_not_do():
    with pytest.raises(NotImplementedError, match="does not support weight"):
        CrossEntropyLoss(torch.ones(V))
    with pytest.raises(ValueError, match="reduction"):
        CrossEntropyLoss(reduction="batchmean")
    with pytest.raises(NotImplementedError, match="probabilities"):
        CrossEntropyLoss()(torch.randn(2, V), torch.rand(2, V))


def test_compiled():
    """There the gradient is not made in place; the numbers are the same."""
    logits, leaf, target = both(shape=(6,))
    layer = CrossEntropyLoss(inplace=True)
    expected = torch.autograd.grad(layer(logits, target), leaf)[0]
    compiled = torch.compile(
        lambda leaf: layer(leaf * 3, target), backend="aot_eager", fullgraph=True
    )
    found = torch.autograd.grad(compiled(leaf), leaf)[0]
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
