# SPDX-License-Identifier: Apache-2.0
"""top_p_renorm by a stable sort."""

import numpy as np
from draw_reference import renormed


def reference(probs, top_p):
    return renormed(probs, np.zeros(len(probs), int), np.broadcast_to(top_p, len(probs)))
