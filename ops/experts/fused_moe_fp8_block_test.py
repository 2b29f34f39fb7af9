# SPDX-License-Identifier: Apache-2.0
"""fused_moe_fp8_block slot by slot, quantised as quant_fp8 does; sums that are exact, of every kind of x."""

import sys
from pathlib import Path

import anyop
import ml_dtypes
import numpy as np
import pytest
from fused_moe_w8a8_test import quantised, slot_by_slot

sys.path.insert(0, str(Path(__file__).parents[1] / "linear"))

from linear_fp8_block_test import spread

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def reference(
    x, w13, w2, w13_scale, w2_scale, weights, ids, x_scale, expert_map, activation, out_dtype=None,
    in_codes=None,
):  # fmt: skip
    if in_codes is None:  # what was drawn in more bits does not fit into 8
        in_codes = (x == x.astype(E4M3)).all()

    def blocks(rows, given=None):
        return quantised(rows, 128, False, given)

    if in_codes:
        tokens = x * (1 if x_scale is None else spread(x_scale, *x.shape, 1))
    else:
        tokens = blocks(x, x_scale)
    factors = (
        w.astype(float) * spread(s, *w.shape[1:], 128)
        for w, s in ((w13, w13_scale), (w2, w2_scale))
    )
    return slot_by_slot(tokens, *factors, weights, ids, expert_map, activation, blocks)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("T", "E", "K"), [(1, 1, 1), (65, 8, 2), (200, 3, 4)])
def test_whole_numbers(T, E, K, given, kind):
    """Every sum is exact in float32, so that each code is known: what is left are some roundings."""
    random, H, width = np.random.default_rng(T), 200, 140
    x = random.integers(-8, 9, (T, H)).astype(np.float32)
    x[:, ::128] = 448  # scales are 1 where they are not given
    x_scale = np.exp2(random.integers(0, 2, (T, 2))).astype(np.float32) if given else None
    x = x.astype(getattr(ml_dtypes, kind, kind))
    w13, w2 = (random.integers(-2, 3, s).astype(E4M3) for s in ((E, width, H), (E, H, width)))
    scales = (np.exp2(-random.integers(3, 6, (E, *s))).astype(np.float32) for s in ((2, 2), (2, 2)))
    weights, ids = random.random((T, K)).astype("f4"), random.integers(-1, E, (T, K)).astype("i4")
    ids[0] = 0
    call = (x, w13, w2, *scales, weights, ids, x_scale)
    found = anyop.fused_moe_fp8_block(*call, activation="relu2", out_dtype="float32")
    wide = [a if a is None or a.dtype == np.int32 else a.astype(float) for a in call]
    expected = reference(*wide, None, "relu2", in_codes=kind == "float8_e4m3fn")
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6 * np.abs(expected).max())
    assert np.abs(expected).max() > 1
