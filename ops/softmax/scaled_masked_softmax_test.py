# SPDX-License-Identifier: Apache-2.0
"""scaled_masked_softmax in float64; masks of every stride, rows left out whole, what lies under a mask."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest


def reference(x, mask, scale):
    keep = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask == 0, x.shape)
    with np.errstate(all="ignore"):
        scores = np.where(keep, scale * x, -np.inf)
        most = scores.max(-1, keepdims=True, initial=-np.inf)
        power = np.where(keep, np.exp(scores - most), 0)
        shares = power / power.sum(-1, keepdims=True)
        return np.where(keep, shares, 0)


@pytest.mark.parametrize("kind", ["bool", "uint8"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("T", [1, 70, 1025, 8193])
def test_padding(dtype, T, kind):
    """The mask of a model: (B, 1, S, T), or what broadcasts to it; 7 leaves out as 1 does."""
    random = np.random.default_rng(T)
    x = (random.standard_normal((2, 3, 4, T)) * 3).astype(dtype)
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    for shape in ((2, 1, 4, T), (2, 1, 1, T), (4, 1), (T,), ()):
        mask = (random.random(shape) < 0.4).astype(kind)
        mask = mask * np.uint8(7) if kind == "uint8" else np.asarray(mask)
        found = anyop.scaled_masked_softmax(x, mask, 0.5).astype(float)
        expected = reference(x.astype(float), mask, 0.5)
        np.testing.assert_allclose(found, expected, limit, limit)
        assert (found[np.broadcast_to(mask != 0, x.shape)] == 0).all()


def test_masks_of_any_strides():
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 40, 50)).astype(np.float32)
    mask = random.random((50, 40, 2, 1)) < 0.5
    for view in (mask.transpose(2, 3, 1, 0), mask.transpose(2, 3, 1, 0)[..., ::-1]):
        found = anyop.scaled_masked_softmax(x, view)
        np.testing.assert_allclose(found, reference(x.astype(float), view, 1), 1e-6, 1e-6)


def test_rows_left_out_whole_are_0():
    x = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    x[:, 1] = np.nan
    x[:, 2] = -np.inf
    mask = np.zeros((4, 6), bool)
    mask[:3] = True
    found = anyop.scaled_masked_softmax(x, mask)
    assert (found[:, :3] == 0).all()
    np.testing.assert_allclose(found[:, 3].sum(-1), 1, 1e-6)


def test_what_is_not_finite():
    x = np.zeros((4, 5), np.float32)
    x[0, 0] = x[1, 1] = np.nan
    x[2, 1:] = -np.inf
    x[3, 0] = np.inf
    mask = np.array([1, 0, 0, 0, 0], np.uint8)
    nan = np.nan
    expected = [[0, 0.25, 0.25, 0.25, 0.25], [0, nan, nan, nan, nan], [0, nan, nan, nan, nan]]
    expected.append(expected[0])
    np.testing.assert_allclose(anyop.scaled_masked_softmax(x, mask), expected, 1e-6)


def test_bad_masks():
    x = np.ones((2, 3, 4, 5), np.float32)
    with pytest.raises(ValueError, match=r"^scaled_masked_softmax: mask has shape \(2, 3, 4, 4\)"):
        anyop.scaled_masked_softmax(x, np.ones((2, 3, 4, 4), bool))
    with pytest.raises(TypeError, match=r"^scaled_masked_softmax: mask has dtype float32"):
        anyop.scaled_masked_softmax(x, x)


def test_huge_scales_leave_the_greatest_alone():
    random = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        x = random.standard_normal((3, 40, 40)).astype(dtype)
        for scale in (1e10, -1e10, 1e30, -1e38, 1e39):
            mask = random.random(x.shape) < 0.5
            found = anyop.scaled_masked_softmax(x, mask, scale)
            np.testing.assert_array_equal(found, reference(x.astype(float), mask, scale))
