# SPDX-License-Identifier: Apache-2.0
"""transducer_joint in float64; dropout by Philox 4x32-10, lengths, gradients from torch."""

import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "sampling"))
from draw_reference import philox


def reference(f, g, f_len, g_len, seed, offset, relu, dropout):
    sums = f[:, :, None] + g[:, None]
    kept = _inside(f, g, f_len, g_len) & np.ones(sums.shape, bool)
    if relu:
        kept &= ~(sums <= 0)
    if dropout:
        kept &= words(seed[0], offset[0], sums.shape) >= np.floor(dropout * 2**32 + 0.5)
    return np.where(kept, sums * _scale(dropout), 0), kept


def _inside(f, g, f_len, g_len):
    t, u = np.arange(f.shape[1]), np.arange(g.shape[1])
    return ((t < f_len[:, None])[:, :, None] & (u < g_len[:, None])[:, None])[..., None]


def _scale(dropout):
    return 1 / (1 - dropout) if dropout < 1 else 1


def words(seed, offset, shape):
    """Word h % 4 at the counter (offset + h // 4, row), in whole numbers."""
    H = shape[-1]
    row, h = np.divmod(np.arange(np.prod(shape), dtype=np.uint64), np.uint64(H))
    at = np.uint64(offset) + h // np.uint64(4)
    four = philox(seed, row, at)
    return np.take_along_axis(four, (h % np.uint64(4)).astype(int)[:, None], 1).reshape(shape)


def test_known_answers():
    """The vectors of Random123, kat_vectors, philox4x32 10: what the other tests compare with is Philox."""
    ones = 2**64 - 1
    for key, low, high, exact in (
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ones, ones, ones, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E,
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):  # fmt: skip
        found = philox(key, np.array([high], np.uint64), [low])
        assert " ".join(f"{int(word):08x}" for word in found[0]) == exact


def made(dtype="float32", B=3, T=5, U=4, H=37):
    random = np.random.default_rng(H)
    f, g = (random.standard_normal((B, n, H)).astype(dtype) for n in (T, U))
    return f, g, random.integers(0, T + 1, B), random.integers(0, U + 1, B)


@pytest.mark.parametrize("dropout", [0.25, 1.0, 1e-10])
@pytest.mark.parametrize("relu", [False, True])
def test_dropout(relu, dropout):
    inputs = made()
    seed, offset = np.array([-7]), np.array([2**33 + 5])
    given = {"seed": seed, "offset": offset, "relu": relu, "dropout": dropout}
    out, mask = anyop.transducer_joint(*inputs, **given)
    exact, kept = reference(*(a.astype(float) if a.ndim > 1 else a for a in inputs), **given)
    np.testing.assert_array_equal(mask, kept)
    np.testing.assert_allclose(out, exact, rtol=3e-7, atol=1e-7)
    # The gradient drops the same elements.
    grad = np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)
    found = anyop.transducer_joint_backward(grad, *inputs, **given)
    kept_grad = np.where(kept, grad.astype(float), 0) * _scale(dropout)
    for axis, one in ((2, found[0]), (1, found[1])):
        np.testing.assert_allclose(one, kept_grad.sum(axis), rtol=1e-6, atol=1e-6)


def test_a_share_is_dropped():
    """Of 2^20 elements, within five deviations; another seed or offset drops others."""
    f, g = np.ones((1, 64, 256), np.float32), np.ones((1, 64, 256), np.float32)
    n = np.array([64])

    def kept(seed, offset):
        return anyop.transducer_joint(
            f, g, n, n, np.array([seed]), np.array([offset]), dropout=0.3
        )[1]

    first = kept(1, 0)
    assert abs(first.mean() - 0.7) < 5 * (0.21 / first.size) ** 0.5
    for other in (kept(2, 0), kept(1, 64)):
        assert abs((first & other).mean() - 0.49) < 5 * (0.25 / first.size) ** 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": 1.5}, "dropout is 1.5, expected a number from 0 to 1"),
        ({"dropout": 0.5}, "dropout is 0.5, which needs seed and offset"),
        ({"f_len": np.array([1, 6, 0])}, r"f_len\[1\] is 6, expected 0 <= f_len <= 5"),
        ({"g_len": np.array([1, 4, -1])}, r"g_len\[2\] is -1, expected 0 <= g_len <= 4"),
    ],
)
def test_what_is_refused(change, message):
    given = dict(zip(("f", "g", "f_len", "g_len"), made(), strict=True)) | change
    with pytest.raises(ValueError, match=f"^transducer_joint: {message}$"):
        anyop.transducer_joint(**given)


def test_what_lies_behind_lengths_changes_nothing():
    f, g, _, _ = made()
    f_len, g_len = np.array([2, 5, 0]), np.array([4, 1, 3])
    out, _ = anyop.transducer_joint(f, g, f_len, g_len, relu=True)
    for b in range(3):
        f[b, f_len[b] :], g[b, g_len[b] :] = np.nan, np.inf
    assert anyop.transducer_joint(f, g, f_len, g_len, relu=True)[0].tobytes() == out.tobytes()
    grad = np.where(_inside(f, g, f_len, g_len), np.float32(1), np.float32(np.nan))
    grad = np.broadcast_to(grad, out.shape).copy()
    for one in anyop.transducer_joint_backward(grad, f, g, f_len, g_len, relu=True):
        assert np.isfinite(one).all()


def test_gradients_from_torch():
    """gradcheck in float64, with dropout and without."""
    torch = pytest.importorskip("torch")
    import anyop.torch

    f, g = (torch.randn(2, n, 5, dtype=torch.float64, requires_grad=True) for n in (3, 2))
    lengths = torch.tensor([3, 2]), torch.tensor([1, 2])
    place = torch.tensor([3]), torch.tensor([4])
    for given in ({}, {"relu": True, "dropout": 0.3}):
        assert torch.autograd.gradcheck(
            lambda f, g, given=given: anyop.transducer_joint(
                f, g, *lengths, *place, mask=False, **given
            )[0],
            (f, g),
        )
