# SPDX-License-Identifier: Apache-2.0
"""sample_probs: the draws of draw_reference.py."""

from draw_reference import draws


def reference(probs, seed, offset, top_k, top_p, min_p, rows, top_k_first):
    return draws(probs, seed, offset, None, top_k, top_p, min_p, rows, top_k_first, True)[0]
