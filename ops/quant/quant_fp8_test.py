# SPDX-License-Identifier: Apache-2.0
"""quant_fp8 exactly, in float32; every kind of scale, ties, what is not finite."""

import anyop
import ml_dtypes
import numpy as np
import pytest

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def groups_of(x, group):
    """The columns of each scale, as slices."""
    return [slice(at, at + group) for at in range(0, x.shape[-1], group)]


def reference(x, scale, group, dtype):
    """What is multiplied and rounded in float32, bit for bit; e4m3 is left to be rounded by the comparison."""
    x = x.astype(np.float32)
    limit = 127 if dtype == "int8" else 448
    with np.errstate(all="ignore"):
        most = [np.abs(x[..., at]).max(-1) for at in groups_of(x, group)]
        scales = np.empty((*x.shape[:-1], len(most)), np.float32)
        for g, found in enumerate(most):
            scales[..., g] = np.maximum(found, np.float32(1e-10)) / np.float32(limit)
        if scale is not None:
            scales[...] = scale
        greatest = np.finfo(np.float32).max
        factors = np.clip(np.float32(1) / scales, -greatest, greatest)
        out = x * np.repeat(factors, min(group, x.shape[-1]), -1)[..., : x.shape[-1]]
        if dtype == "int8":
            return np.clip(np.rint(np.nan_to_num(out, nan=0.0)), -128, 127), scales
        return np.clip(out, -448, 448), scales


def test_every_float32_of_a_kind_is_rounded_as_ml_dtypes_does():
    bits = np.arange(0, 2**32, 65521, dtype=np.uint32)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)  # all ties
    x = np.concatenate([bits.view(np.float32), halves])
    x = x[~np.isnan(x)]
    found, scales = anyop.quant_fp8(x, np.ones(1, np.float32))
    expected = np.clip(x, -448, 448).astype(E4M3)
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(scales, [1])
    found = anyop.quant_fp8(x, np.ones((), np.float32), dtype="int8")[0]
    np.testing.assert_array_equal(found, np.clip(np.rint(x), -128, 127))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("D", [1, 127, 128, 1025, 8193])
@pytest.mark.parametrize("group", [128, 2147483647])
def test_every_bit(dtype, D, group):
    x = np.random.default_rng(D).standard_normal((3, D)).astype(np.float32)
    x[0] = 0
    given = np.random.default_rng(0).uniform(0.01, 1, (3, 1)).astype(np.float32)
    for scale in (None, given, given[0], given[0, 0, None], given[0, 0].reshape(())):
        found, scales = anyop.quant_fp8(x, scale, group=group, dtype=dtype)
        expected, expected_scales = reference(x, scale, group, dtype)
        np.testing.assert_array_equal(scales, expected_scales)
        expected = expected.astype(E4M3 if dtype != "int8" else np.int8)
        np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_what_is_not_finite():
    x = np.array([[1, np.nan, 2, 3], [1, np.inf, 2, 3]], np.float32)
    out, scales = anyop.quant_fp8(x, group=2)
    np.testing.assert_array_equal(scales, np.float32([[np.nan, 3 / 448], [np.inf, 3 / 448]]))
    np.testing.assert_array_equal(out[:, 2:].astype(float), [[288, 448]] * 2)
    with np.errstate(all="ignore"):
        assert not np.isfinite(out[:, :2].astype(np.float32) * scales[:, :1]).any()
    one = np.ones((), np.float32)
    out = anyop.quant_fp8(np.float32([np.nan, np.inf, -np.inf]), one)[0].astype(float)
    np.testing.assert_array_equal(out, [np.nan, 448, -448])
    out = anyop.quant_fp8(np.float32([np.nan, np.inf, -np.inf]), one, dtype="int8")[0]
    np.testing.assert_array_equal(out, [0, 127, -128])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_scales_whose_reciprocal_ends(dtype):
    x = np.float32([0, -0.0, 1e-44, 1e-38, -2.5, 3e38, np.inf, -np.inf, np.nan])
    scales = np.float32([0, -0.0, 1e-45, 2.9e-39, 3e-39, -1e-40, 1e38, 3.4e38, np.inf, np.nan])
    for scale in scales.reshape(-1, 1):
        found = anyop.quant_fp8(x, scale, dtype=dtype)[0]
        expected = reference(x, scale, x.size, dtype)[0].astype(
            E4M3 if dtype != "int8" else np.int8
        )
        np.testing.assert_array_equal(found.astype(float), expected.astype(float))
        if np.isfinite(scale):
            assert np.isfinite(found[:6].astype(float)).all()


def test_bad_groups_and_scales():
    x = np.ones((2, 4), np.float32)
    for group in (0, -1):
        with pytest.raises(ValueError, match=r"^quant_fp8: .*group"):
            anyop.quant_fp8(x, group=group)
    with pytest.raises(ValueError, match=r"^quant_fp8: scale has shape \(3\)"):
        anyop.quant_fp8(x, np.ones(3, np.float32))
