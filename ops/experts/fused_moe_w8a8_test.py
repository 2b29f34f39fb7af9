# SPDX-License-Identifier: Apache-2.0
"""fused_moe_w8a8 slot by slot, quantised as quant_fp8 does; sums that are exact; NaN; what is rejected."""

import anyop
import ml_dtypes
import numpy as np
import pytest
from fused_moe_test import activate, halves, local_experts

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def quantised(rows, group, is_int8, given=None):
    """What is left of rows: codes times scales, in float64."""
    rows = rows.astype(np.float32)
    out = np.zeros(rows.shape)
    for g, at in enumerate(range(0, rows.shape[-1], group)):
        part = rows[..., at : at + group]
        most = np.maximum(np.abs(part).max(-1, keepdims=True), np.float32(1e-10))
        scale = most / np.float32(127 if is_int8 else 448)
        if given is not None:
            scale = given[..., g, None].astype(np.float32)
        codes = part * (np.float32(1) / scale)
        codes = np.rint(codes) if is_int8 else np.clip(codes, -448, 448).astype(E4M3).astype(float)
        out[..., at : at + group] = codes * scale.astype(float)
    return out


def slot_by_slot(tokens, w13, w2, weights, ids, expert_map, activation, requantise):
    out, experts = np.zeros(tokens.shape), local_experts(ids, len(w13), expert_map)
    for t, k in np.argwhere(experts >= 0):
        e = experts[t, k]
        gate, up = halves(w13[e] @ tokens[t], activation, False)
        out[t] += weights[t, k] * (w2[e] @ requantise(activate(gate, up, activation, 1.0)))
    return out


def reference(
    x, w13, w2, w13_scale, w2_scale, weights, ids, expert_map, activation, out_dtype=None
):
    is_int8 = w13.dtype == np.int8

    def whole(rows):
        return quantised(rows, max(rows.shape[-1], 1), is_int8)

    factors = (w13.astype(float) * w13_scale[..., None], w2.astype(float) * w2_scale[..., None])
    return slot_by_slot(whole(x), *factors, weights, ids, expert_map, activation, whole)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize(("T", "E", "K"), [(1, 1, 1), (65, 8, 2), (300, 5, 4), (63, 128, 8)])
def test_whole_numbers(T, E, K, dtype):
    """Every sum is exact in float32, so that each code is known: what is left are four roundings."""
    random, kind = np.random.default_rng(T), np.dtype(getattr(ml_dtypes, dtype, dtype))
    limit = 127 if dtype == "int8" else 448
    x = random.integers(-8, 9, (T, 40)).astype(np.float32) * limit / 8
    x[:, 0] = limit  # the scale is 1, and of e4m3 each number has its code
    x = x.astype(kind).astype(np.float32)
    w13, w2 = (random.integers(-2, 3, s).astype(kind) for s in ((E, 24, 40), (E, 40, 24)))
    scales = np.exp2(-random.integers(6, 9, (E, 64))).astype(np.float32)
    weights, ids = random.random((T, K)).astype("f4"), random.integers(-1, E, (T, K)).astype("i4")
    ids[0] = 0
    call = (x, w13, w2, scales[:, :24].copy(), scales[:, 24:].copy(), weights, ids)
    found = anyop.fused_moe_w8a8(*call, activation="relu2", out_dtype="float32")
    wide = [a if a.dtype in (np.int32, np.int8) else a.astype(float) for a in call]
    expected = reference(*wide, None, "relu2")
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6 * np.abs(expected).max())
    assert np.abs(expected).max() > 1


def test_nan_stays_in_its_token():
    x, ids = np.ones((4, 8), np.float32), np.array([[0], [1], [0], [1]], np.int32)
    x[2, 3] = np.nan
    w13, w2 = np.ones((2, 6, 8), E4M3), np.ones((2, 8, 3), E4M3)
    ones = np.ones((2, 8), np.float32)
    call = (w13, w2, ones[:, :6].copy(), ones, np.ones((4, 1), np.float32), ids)
    found = anyop.fused_moe_w8a8(x, *call, out_dtype="float32")
    np.testing.assert_array_equal(np.isnan(found).all(1), [False, False, True, False])
    assert not np.isnan(found[[0, 1, 3]]).any()


def test_bad_calls():
    x, w13, w2 = np.ones((2, 3), "f4"), np.ones((4, 10, 3), "i1"), np.ones((4, 3, 5), "i1")
    scales = np.ones((4, 10), np.float32), np.ones((4, 3), np.float32)
    rest = np.ones((2, 1), np.float32), np.zeros((2, 1), np.int32)
    with pytest.raises(ValueError, match=r"^fused_moe_w8a8: .*activation"):
        anyop.fused_moe_w8a8(x, w13, w2, *scales, *rest, activation="swigluoai")
    with pytest.raises(ValueError, match=r"^fused_moe_w8a8: w2"):
        anyop.fused_moe_w8a8(x, w13, w2[:, :, :4].copy(), *scales, *rest)
    with pytest.raises(TypeError, match=r"^fused_moe_w8a8: w2"):
        anyop.fused_moe_w8a8(x, w13, w2.astype(E4M3), *scales, *rest)
