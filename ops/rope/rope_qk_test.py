# SPDX-License-Identifier: Apache-2.0
"""rope_qk as rope twice; queries and keys in place, and each in the other's memory."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
import pytest
from rotary_reference import angles, rotated


def reference(q, k, cos, sin, positions, cu_seqlens, interleaved):
    more = cos, sin, positions, cu_seqlens, interleaved
    return rotated(q, *more), rotated(k, *more)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_same_bits_as_rope(dtype, interleaved):
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 5, h, 96)).astype(np.dtype(dtype)) for h in (6, 2))
    cos, sin = angles(9, 64)
    for given in [
        {},
        {"positions": np.array([8, 1, 0, 0, 3])},
        {"cu_seqlens": np.array([1, 4], np.int32)},
    ]:
        more = {**given, "interleaved": interleaved}
        for found, x in zip(anyop.rope_qk(q, k, cos, sin, **more), (q, k)):
            assert found.tobytes() == anyop.rope(x, cos, sin, **more).tobytes()


def test_one_in_the_memory_of_the_other():
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 5, 3, 8)).astype(np.float32) for _ in range(2))
    cos, sin = angles(5, 8)
    expected = anyop.rope_qk(q, k, cos, sin)
    for out in ({"q_out": 0, "k_out": 1}, {"q_out": 1}, {"k_out": 0}, {"q_out": 0}):
        given = q.copy(), k.copy()
        found = anyop.rope_qk(*given, cos, sin, **{name: given[at] for name, at in out.items()})
        for a, b in zip(found, expected):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"^rope_qk: q_out is the memory of k and k_out that of q"):
        anyop.rope_qk(q, k, cos, sin, q_out=k, k_out=q)
