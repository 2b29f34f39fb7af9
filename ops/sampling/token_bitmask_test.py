# SPDX-License-Identifier: Apache-2.0
"""token_bitmask bit by bit."""

import numpy as np


def reference(logits, bitmask, rows):
    V = logits.shape[-1]
    for b, words in enumerate(bitmask):
        row = b if rows is None else rows[b]
        if 0 <= row < len(logits):
            bits = (words[:, None] >> np.arange(32)).reshape(-1)[:V] & 1
            logits[row, bits == 0] = -np.inf
