# SPDX-License-Identifier: Apache-2.0
"""transducer_loss in float64; a sum over all alignments, what lies behind lengths, gradients from torch."""

from itertools import combinations

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, label, f_len, y_len, blank_idx, log_softmax):
    B, T, U, _ = x.shape
    loss, lse, *moves = np.zeros(B), np.zeros((B, T, U)), np.zeros((B, T, U)), np.zeros((B, T, U))
    for b in range(B):
        n, m = f_len[b], y_len[b] + 1
        if n == 0:
            continue
        own = x[b, :n, :m]
        if log_softmax:
            most = own.max(-1, keepdims=True)
            lse[b, :n, :m] = (np.log(np.exp(own - most).sum(-1, keepdims=True)) + most)[..., 0]
        of = own - lse[b, :n, :m, None]
        # Probabilities of moves, and of all that comes before a node and behind it.
        blank = np.exp(of[..., blank_idx])
        labelled = np.exp(of[:, np.arange(m - 1), label[b, : m - 1]])
        before, behind = np.zeros((n, m)), np.zeros((n + 1, m + 1))
        behind[n, m - 1] = 1  # after the last blank
        for t in reversed(range(n)):
            for u in reversed(range(m)):
                behind[t, u] = blank[t, u] * behind[t + 1, u]
                if u + 1 < m:
                    behind[t, u] += labelled[t, u] * behind[t, u + 1]
        for t in range(n):
            for u in range(m):
                before[t, u] = 1 if t + u == 0 else 0
                if t:
                    before[t, u] += before[t - 1, u] * blank[t - 1, u]
                if u:
                    before[t, u] += before[t, u - 1] * labelled[t, u - 1]
        with np.errstate(all="ignore"):
            loss[b] = -np.log(behind[0, 0])
            moves[0][b, :n, :m] = before * blank * behind[1:, :m] / behind[0, 0]
            moves[1][b, :n, : m - 1] = before[:, :-1] * labelled * behind[:n, 1:m] / behind[0, 0]
    return loss, *moves, lse


def made(dtype="float32", B=3, T=6, U=4, V=19):
    random = np.random.default_rng(V)
    x = random.standard_normal((B, T, U, V)).astype(dtype)
    label = random.integers(1, V, (B, U - 1))
    return x, label, random.integers(1, T + 1, B), random.integers(0, U, B)


def test_all_alignments():
    """The sum over all ways to put labels between frames, written down one by one."""
    x, label, *_ = made("float64")
    f_len, y_len = np.array([4, 1, 6]), np.array([3, 2, 0])
    loss, *_ = anyop.transducer_loss(x, label, f_len, y_len, 0)
    p = np.exp(x - np.log(np.exp(x).sum(-1, keepdims=True)))
    for b in range(3):
        total, moves = 0, f_len[b] - 1 + y_len[b]  # the last move is a blank
        for labels in combinations(range(moves), y_len[b]):
            t = u = 0
            product = 1.0
            for i in range(moves + 1):
                if i in labels:
                    product *= p[b, t, u, label[b, u]]
                    u += 1
                else:
                    product *= p[b, t, u, 0]
                    t += 1
            assert (t, u) == (f_len[b], y_len[b])
            total += product
        np.testing.assert_allclose(loss[b], -np.log(total), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_long(dtype):
    """Sums over 400 frames keep their digits: moves are float32 of sums in float64."""
    x, label, *_ = made(dtype, B=1, T=400, U=90, V=30)
    given = x, label, np.array([400]), np.array([89])
    found = anyop.transducer_loss(*given)
    wide = given[0].astype(float)
    own = anyop.transducer_loss(wide, *given[1:])
    unit = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(found[0], own[0], rtol=unit)
    # A logarithm of probability is off by 5e-7, and one of 490 adds to another as often up as down.
    np.testing.assert_allclose(found[1], own[1], atol=1e-9 if dtype == "float64" else 5e-5)
    # Each alignment goes through each frame by a blank, and takes each label once.
    np.testing.assert_allclose(own[1][0].sum(1), 1, atol=1e-9)
    np.testing.assert_allclose(own[2][0].sum(0)[:-1], 1, atol=1e-9)


def test_logarithms_of_probabilities():
    x, *rest = made("float64")
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    found = anyop.transducer_loss(logs, *rest, log_softmax=False)
    exact = anyop.transducer_loss(x, *rest)
    for one, other in zip(found[:3], exact[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    assert not found[3].any()


def test_what_lies_behind_lengths_changes_nothing():
    x, label, _, _ = made()
    f_len, y_len = np.array([2, 6, 1]), np.array([3, 0, 1])
    before = anyop.transducer_loss(x, label, f_len, y_len)
    for b in range(3):
        x[b, f_len[b] :], x[b, :, y_len[b] + 1 :], label[b, y_len[b] :] = np.nan, np.inf, -9
    found = anyop.transducer_loss(x, label, f_len, y_len)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in before]
    loss, *saved = found
    grad = anyop.transducer_loss_backward(x, label, f_len, y_len, *saved, np.ones_like(loss))
    for b in range(3):
        assert not grad[b, f_len[b] :].any() and not grad[b, :, y_len[b] + 1 :].any()
        np.testing.assert_allclose(grad[b, : f_len[b], : y_len[b] + 1].sum(-1), 0, atol=1e-6)


def test_no_alignment():
    """A loss that is infinite has NaN for its gradient, that of its sequence alone."""
    x, label, f_len, y_len = made()
    x[1, :, :, 0] = -np.inf
    loss, *saved = anyop.transducer_loss(x, label, f_len, y_len)
    assert loss[1] == np.inf and np.isfinite(loss[[0, 2]]).all()
    grad = anyop.transducer_loss_backward(x, label, f_len, y_len, *saved, np.ones_like(loss))
    assert np.isnan(grad[1, 0, 0]).any() and np.isfinite(grad[[0, 2]]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"f_len": np.array([1, -1, 1])}, ValueError, r"f_len\[1\] is -1, expected 0 <= f_len <= 6"),
        ({"y_len": np.array([1, 0, 4])}, ValueError, r"y_len\[2\] is 4, expected 0 <= y_len <= 3"),
        ({"label": np.array([[1, 19, 1]] * 3), "y_len": np.array([1, 2, 0])}, IndexError,
         r"label\[1, 1\] is 19, expected 0 <= label < 19"),
        ({"blank_idx": 19}, ValueError, "expected blank_idx to be a class of x"),
    ],
)  # fmt: skip
def test_what_is_refused(change, error, message):
    given = dict(zip(("x", "label", "f_len", "y_len"), made(), strict=True)) | change
    with pytest.raises(error, match=f"^transducer_loss: .*{message}"):
        anyop.transducer_loss(**given)


def test_gradients_from_torch():
    """gradcheck in float64, of logits and of logarithms of probabilities; where a label is the blank."""
    torch = pytest.importorskip("torch")
    import anyop.torch

    x = torch.randn(2, 3, 3, 5, dtype=torch.float64, requires_grad=True)
    rest = torch.tensor([[1, 4], [2, 0]]), torch.tensor([3, 2]), torch.tensor([1, 2])
    for given in ({}, {"blank_idx": 2}, {"log_softmax": False}):
        assert torch.autograd.gradcheck(
            lambda x, given=given: anyop.transducer_loss(x, *rest, **given)[0], (x,)
        )
