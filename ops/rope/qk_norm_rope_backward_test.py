# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope_backward in float64; one gradient alone; the same bits for any number of threads' shares."""

import anyop
import ml_dtypes  # noqa: F401  bfloat16
import numpy as np
from rotary_reference import angles, rotated


def reference(
    grad_q_out, grad_k_out, q, k, q_weight, k_weight, cos, sin, positions, eps, weight_offset, interleaved
):  # fmt: skip
    grads, sums = [], []
    with np.errstate(all="ignore"):
        for g, x, weight in ((grad_q_out, q, q_weight), (grad_k_out, k, k_weight)):
            back = rotated(g, cos, sin, positions, None, interleaved, back=True)
            scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
            slope, normal = back * (weight + weight_offset), x * scale
            grads.append(scale * (slope - normal * (slope * normal).mean(-1, keepdims=True)))
            sums.append((back * normal).sum(tuple(range(x.ndim - 1))))
    return (*grads, *sums)


def test_one_alone_and_many_tokens():
    random = np.random.default_rng(0)
    q, k, gq, gk = (random.standard_normal((3, 400, h, 64)).astype("f") for h in (6, 2, 6, 2))
    w, v = (random.standard_normal(64).astype(np.float32) for _ in range(2))
    cos, sin = angles(400, 48)
    args = gq, gk, q, k, w, v, cos, sin
    found = anyop.qk_norm_rope_backward(*args)
    wide = [a.astype(float) for a in args]
    for a, b in zip(found, reference(*wide, None, 1e-6, 0.0, False)):
        assert (np.abs(a - b) <= 2e-5 * (1 + np.abs(b))).all()
    names = ["grad_q", "grad_k", "grad_q_weight", "grad_k_weight"]
    for at, name in enumerate(names):
        alone = anyop.qk_norm_rope_backward(*args, **{n: False for n in names if n != name})
        np.testing.assert_array_equal(alone[at], found[at])
        assert [g is None for g in alone] == [n != name for n in names]
