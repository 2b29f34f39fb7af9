# SPDX-License-Identifier: Apache-2.0
"""transducer_joint_backward in float64; no number of threads."""

import anyop
import numpy as np


def reference(grad_out, f, g, f_len, g_len, seed, offset, relu, dropout):
    assert not dropout  # transducer_joint_test.py
    sums = f[:, :, None] + g[:, None]
    t, u = np.arange(f.shape[1]), np.arange(g.shape[1])
    inside = ((t < f_len[:, None])[:, :, None] & (u < g_len[:, None])[:, None])[..., None]
    kept = inside & ~((sums <= 0) & relu)
    given = np.where(kept, grad_out, 0)
    return given.sum(2), given.sum(1)


def test_the_same_bits_for_any_number_of_threads():
    random, before, found = np.random.default_rng(0), anyop.get_num_threads(), []
    f, g = (random.standard_normal((3, n, 700)).astype(np.float32) for n in (40, 30))
    grad = random.standard_normal((3, 40, 30, 700)).astype(np.float32)
    lengths = np.array([40, 7, 33]), np.array([30, 29, 1])
    try:
        for threads in (1, 2, 5):
            anyop.set_num_threads(threads)
            found.append(anyop.transducer_joint_backward(grad, f, g, *lengths, relu=True))
    finally:
        anyop.set_num_threads(before)
    for results in found[1:]:
        assert [r.tobytes() for r in results] == [r.tobytes() for r in found[0]]
