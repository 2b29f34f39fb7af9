# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.transducer and its extensions: against formulas of torch, padded and packed."""

import pytest

torch = pytest.importorskip("torch")

from anyop.torch.apex.contrib.transducer import TransducerJoint, TransducerLoss  # noqa: E402
from anyop.torch.apex.extensions import (  # noqa: E402
    transducer_joint_cuda,
    transducer_loss_cuda,
)

F_LEN, Y_LEN = torch.tensor([6, 2, 4], dtype=torch.int32), torch.tensor([3, 1, 0]).int()
NONE = torch.empty(0)
INSIDE = (torch.arange(6)[:, None] < F_LEN[:, None, None]) & (
    torch.arange(4) <= Y_LEN[:, None, None]
)
ENDS = torch.cumsum(F_LEN * (Y_LEN + 1), 0)


def plain_loss(x, label):
    """Alpha of torch's operators, as Apex's reference: differentiable."""
    logs, losses = x.log_softmax(-1), []
    for b, (n, m) in enumerate(zip(F_LEN.tolist(), (Y_LEN + 1).tolist(), strict=True)):
        alpha = {(0, 0): logs.new_zeros(())}
        for t in range(n):
            for u in range(m):
                ways = []
                if t:
                    ways.append(alpha[t - 1, u] + logs[b, t - 1, u, 0])
                if u:
                    ways.append(alpha[t, u - 1] + logs[b, t, u - 1, label[b, u - 1]])
                if ways:
                    alpha[t, u] = torch.stack(ways).logsumexp(0)
        losses.append(-alpha[n - 1, m - 1] - logs[b, n - 1, m - 1, 0])
    return torch.stack(losses)


def made(dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 6, 4, 17, dtype=dtype).requires_grad_()
    return x, torch.randint(1, 17, (3, 3), dtype=torch.int32), torch.randn(3).to(dtype)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_loss(dtype, packed):
    x, label, grad = made(dtype)
    wide = x.detach().double().requires_grad_()
    exact = plain_loss(wide, label)
    exact.backward(grad.double())
    debug = []
    if packed:
        loss = TransducerLoss(packed_input=True)(
            x[INSIDE], label, F_LEN, Y_LEN, 0, ENDS, 6, debug_list=debug
        )
    else:
        loss = TransducerLoss()(x, label, F_LEN, Y_LEN, 0, debug_list=debug)
    loss.backward(grad)
    assert loss.dtype is dtype and len(debug) == 2
    unit = max(torch.finfo(dtype).eps, 1e-6 if dtype is not torch.float64 else 1e-12)
    torch.testing.assert_close(loss.double(), exact.detach(), rtol=unit, atol=unit)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=unit, atol=unit)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_loss_extension(packed, fused):
    """Of logarithms of probabilities; their gradient, or that of the logits."""
    x, label, grad = made(torch.float64)
    logs = x.log_softmax(-1)
    exact = plain_loss(x, label)
    (of_x,) = torch.autograd.grad(exact, x, grad, retain_graph=True)
    given, ends = (logs[INSIDE], ENDS) if packed else (logs, NONE)
    given = given.detach()
    alpha, beta, loss = transducer_loss_cuda.forward(
        given, label, F_LEN, Y_LEN, ends, 6, 0, 1, packed
    )
    torch.testing.assert_close(loss, exact.detach())
    found = transducer_loss_cuda.backward(
        given, grad, alpha, beta, F_LEN, Y_LEN, label, ends, 6, 0, 1, fused, packed
    )
    if not fused:  # through the softmax by torch
        through = logs[INSIDE] if packed else logs
        (found,) = torch.autograd.grad(through, x, found)
        packed = False
    torch.testing.assert_close(found, of_x[INSIDE] if packed else of_x)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("relu", "dropout"), [(False, False), (True, False), (True, True)])
def test_joint(relu, dropout, packed):
    """The mask that is probed is what the result and the gradient keep; the extensions agree."""
    torch.manual_seed(1)
    f, g = (torch.randn(3, n, 24, requires_grad=True) for n in (6, 4))
    place = (ENDS, int(ENDS[-1])) if packed else ()
    module = TransducerJoint(packed, relu, dropout, dropout_prob=0.25, probe_mask=True)
    out = module(f, g, F_LEN, Y_LEN + 1, *place)
    sums = f[:, :, None] + g[:, None]
    sums = sums[INSIDE] if packed else torch.where(INSIDE[..., None], sums, 0)
    kept = module.mask_probe[0] if module.mask_probe is not None else torch.ones_like(sums)
    scale = 4 / 3 if dropout else 1.0
    if dropout:
        assert 0.6 < kept.sum() / (sums > 0).sum() < 0.9
    else:
        torch.testing.assert_close(kept.bool(), sums > 0 if relu else kept.bool())
    torch.testing.assert_close(out, torch.where(kept.bool(), sums * scale, 0))
    grad = torch.randn_like(out)
    exact = torch.autograd.grad(torch.where(kept.bool(), sums * scale, 0), (f, g), grad)
    for one, other in zip(torch.autograd.grad(out, (f, g), grad), exact, strict=True):
        torch.testing.assert_close(one, other)
    raw = [grad, kept] if relu or dropout else [grad]
    found = transducer_joint_cuda.backward(
        raw, F_LEN, Y_LEN + 1, ENDS if packed else NONE, 6, 4, packed, scale
    )
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)
    again = transducer_joint_cuda.forward(
        f, g, F_LEN, Y_LEN + 1, ENDS if packed else NONE, int(ENDS[-1]), 1, packed, relu, False,
        0.25, 4,
    )  # fmt: skip
    assert len(again) == 1 + relu
    torch.testing.assert_close(again[0], sums.relu() if relu else sums)


def test_in_evaluation_nothing_is_dropped():
    module = TransducerJoint(dropout=True, dropout_prob=0.5).eval()
    f = torch.ones(1, 2, 8)
    assert (module(f, f, torch.tensor([2]), torch.tensor([2])) == 2).all()


def test_what_is_refused():
    f = torch.ones(1, 2, 8)
    with pytest.raises(NotImplementedError, match="only supported with opt=1"):
        TransducerJoint(relu=True, opt=0)
    with pytest.raises(Exception, match="specify batch_offset and packed_batch"):
        TransducerJoint(pack_output=True)(f, f, F_LEN, F_LEN)
    with pytest.raises(Exception, match="specify batch_offset and max_f_len"):
        TransducerLoss(packed_input=True)(f, f, F_LEN, F_LEN, 0)
