# SPDX-License-Identifier: Apache-2.0
"""penalize by its formula."""

import numpy as np


def reference(logits, prompt_mask, output_counts, repetition, frequency, presence):
    def column(values, without):
        return without if values is None else np.broadcast_to(values, len(logits))[:, None]

    factor = column(repetition, 1.0)
    repeated = np.where(logits > 0, logits / factor, logits * factor)
    x = np.where(prompt_mask | (output_counts > 0), repeated, logits)
    lower = column(frequency, 0.0) * output_counts + column(presence, 0.0)
    logits[...] = np.where(output_counts > 0, x - lower, x)
