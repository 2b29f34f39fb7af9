# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope as norm and rope one after the other; in place; what it refuses."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest
from rotary_reference import angles, rotated


def reference(q, k, q_weight, k_weight, cos, sin, positions, eps, weight_offset, interleaved):
    found = []
    with np.errstate(all="ignore"):
        for x, weight in ((q, q_weight), (k, k_weight)):
            normal = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (weight + weight_offset)
            found.append(rotated(normal, cos, sin, positions, None, interleaved))
    return tuple(found)


def test_in_place_and_in_the_other_memory():
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 5, 3, 96)).astype(np.float32) for _ in range(2))
    weights = [random.standard_normal(96).astype(np.float32) for _ in range(2)]
    cos, sin = angles(9, 64)
    expected = anyop.qk_norm_rope(q, k, *weights, cos, sin, weight_offset=1)
    for out in ({"q_out": 0, "k_out": 1}, {"q_out": 1}, {"k_out": 0}):
        given = q.copy(), k.copy()
        outputs = {name: given[at] for name, at in out.items()}
        found = anyop.qk_norm_rope(*given, *weights, cos, sin, weight_offset=1, **outputs)
        for a, b in zip(found, expected):
            np.testing.assert_array_equal(a, b)


def test_out_of_range_and_too_long():
    x, w, out = np.ones((2, 1, 4), np.float32), np.ones(4, np.float32), np.full((2, 1, 4), 7, "f")
    with pytest.raises(ValueError, match=r"positions\[1\] is 5, expected 0 <= index < 5"):
        anyop.qk_norm_rope(x, x, w, w, *angles(5, 4), np.array([0, 5]), q_out=out)
    assert (out == 7).all()
    x, w = np.ones((1, 1, 1026), np.float32), np.ones(1026, np.float32)
    with pytest.raises(ValueError, match="at most D=1024"):
        anyop.qk_norm_rope(x, x, w, w, *angles(1, 4))
