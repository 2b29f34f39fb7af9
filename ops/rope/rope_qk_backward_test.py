# SPDX-License-Identifier: Apache-2.0
"""rope_qk_backward as rope_backward twice, or once where one gradient is wanted."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
from rotary_reference import angles, rotated


def reference(grad_q_out, grad_k_out, cos, sin, positions, cu_seqlens, interleaved):
    more = cos, sin, positions, cu_seqlens, interleaved
    return tuple(rotated(g, *more, back=True) for g in (grad_q_out, grad_k_out))


def test_one_gradient_alone():
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 5, h, 96)).astype(np.float32) for h in (6, 2))
    cos, sin = angles(9, 64)
    both = [anyop.rope_backward(g, cos, sin) for g in (q, k)]
    for at, unwanted in enumerate(["grad_k", "grad_q"]):
        found = anyop.rope_qk_backward(q, k, cos, sin, **{unwanted: False})
        assert found[1 - at] is None
        np.testing.assert_array_equal(found[at], both[at])
    assert anyop.rope_qk_backward(q, k, cos, sin, grad_q=False, grad_k=False) == (None, None)
