# SPDX-License-Identifier: Apache-2.0
"""moe_align expert by expert."""

import numpy as np


def reference(ids, experts, block_size):
    flat = ids.astype(int).reshape(-1)
    room = flat.size + experts * (block_size - 1)
    sorted_ids = np.full(room, flat.size)
    block_experts = np.full(-(-room // block_size), -1)
    at = 0
    for e in range(experts):
        mine = np.flatnonzero(flat == e)
        sorted_ids[at : at + len(mine)] = mine
        blocks = -(-len(mine) // block_size)
        block_experts[at // block_size : at // block_size + blocks] = e
        at += blocks * block_size
    return sorted_ids, block_experts, np.array([at])
