# SPDX-License-Identifier: Apache-2.0
"""scale_all in float64; changes xs as the operator does."""


def reference(xs, ys, alpha, pads, notes, seed):
    for x, y in zip(xs, ys):
        x += alpha * y + pads[0] + 10 * pads[1] + len(notes) + (seed or 0)
    return ()
