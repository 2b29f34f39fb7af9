# SPDX-License-Identifier: Apache-2.0
"""moe_sort by NumPy's stable sort; all tokens to one expert, none, and many."""

import anyop
import numpy as np
import pytest


def reference(ids, experts, expert_map):
    ids = ids.astype(int)
    if expert_map is not None:
        known = (ids >= 0) & (ids < len(expert_map))
        ids = np.where(known, expert_map.astype(int)[np.where(known, ids, 0)], -1)
    flat = ids.reshape(-1)
    here = (flat >= 0) & (flat < experts)
    slots = np.flatnonzero(here)
    slots = slots[np.argsort(flat[slots], kind="stable")]
    order, inverse = (np.full(flat.shape, -1) for _ in range(2))
    order[: len(slots)] = slots
    inverse[slots] = np.arange(len(slots))
    counts = np.bincount(flat[here], minlength=experts)
    return order, inverse.reshape(ids.shape), np.concatenate([[0], np.cumsum(counts)])


@pytest.mark.parametrize("T", [0, 1, 63, 65, 8192])
@pytest.mark.parametrize("ids", ["one", "none", "all"])
def test_extremes(T, ids):
    random = np.random.default_rng(T)
    drawn = {"one": np.full((T, 8), 3), "none": np.full((T, 8), -1),
             "all": random.integers(0, 384, (T, 8))}[ids].astype(np.int32)  # fmt: skip
    for found, expected in zip(
        anyop.moe_sort(drawn, 384), reference(drawn, 384, None), strict=True
    ):
        assert (found == expected).all()
