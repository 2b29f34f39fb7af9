# SPDX-License-Identifier: Apache-2.0
"""native_fused_moe: the result of fused_moe, the sums in front of the activation, and moe_sort's order."""

import anyop
import numpy as np
import pytest
from fused_moe_test import local_experts, sums_of
from fused_moe_test import reference as fused


def reference(x, w13, w2, weights, ids, bias13, bias2, expert_map, transposed, **rest):
    out = fused(x, w13, w2, weights, ids, bias13, bias2, expert_map, transposed=transposed, **rest)
    E = len(w13)
    experts = local_experts(ids, E, expert_map).ravel()
    order = np.argsort(np.where(experts < 0, E, experts), kind="stable")
    rows = w13.swapaxes(1, 2) if transposed else w13
    hidden = np.zeros((ids.size, rows.shape[1]))
    placed = order[: (experts >= 0).sum()]
    with np.errstate(all="ignore"):
        for i, slot in enumerate(placed):
            hidden[i] = sums_of(x[slot // ids.shape[1]], rows, bias13, experts[slot])
    order[len(placed) :] = -1
    offsets = np.searchsorted(np.sort(experts[experts >= 0]), np.arange(E + 1))
    return out, hidden, order, offsets


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_result_has_the_bits_of_fused_moe(dtype):
    random = np.random.default_rng(0)
    shapes = (9, 12), (4, 10, 12), (4, 12, 5)
    x, w13, w2 = (random.standard_normal(s).astype(dtype) for s in shapes)
    weights, ids = random.random((9, 2)).astype("f4"), random.integers(-1, 5, (9, 2)).astype("i4")
    out, _, order, offsets = anyop.native_fused_moe(x, w13, w2, weights, ids)
    assert anyop.fused_moe(x, w13, w2, weights, ids).tobytes() == out.tobytes()
    expected_order, _, expected_offsets = anyop.moe_sort(ids, 4)
    np.testing.assert_array_equal(order, expected_order)
    np.testing.assert_array_equal(offsets, expected_offsets)
