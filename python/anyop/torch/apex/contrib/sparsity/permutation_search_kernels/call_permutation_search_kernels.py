# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.permutation_search_kernels.call_permutation_search_kernels: searches by their names."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from torch import Tensor

from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.channel_swap import Channel_Swap
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.exhaustive_search import (
    Exhaustive_Search,
)
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.permutation_utilities import (
    Array,
    try_swap,
)

_STRATEGIES = ("exhaustive", "channel swap", "progressive channel swap", "user defined")


def accelerated_search_for_good_permutation(
    matrix_group: Tensor, options: dict[str, Any] | None = None, verbosity: int = 0
) -> list[int]:
    """An order of the columns of a (K, C) tensor of which pruning to 2 of 4 keeps more; on the tensor's device.

    options, of which each may be left out:
        strategy                       "exhaustive"; "channel swap", which Apex has not here, is cheaper;
                                       "progressive channel swap" swaps at random until its time is over;
                                       "user defined" leaves the order
        stripe_group_size              8, of the exhaustive one
        escape_attempts                100, of the first two
        progressive_search_time_limit  60, in seconds
        improvement_threshold          1e-9
        seed                           1, of all that is random; Apex has NumPy's own state
    verbosity:  what is printed; Channel_Swap says more above 10.
    Raises   ValueError for another strategy.
    """
    given = options or {}
    strategy, seed = given.get("strategy", "exhaustive"), given.get("seed", 1)
    if strategy not in _STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}, expected one of {', '.join(_STRATEGIES)}")
    escapes, seconds = given.get("escape_attempts", 100), 0.0
    order = list(range(matrix_group.shape[1]))
    if strategy == "exhaustive":
        size = given.get("stripe_group_size", 8)
        _, seconds, order = Exhaustive_Search(matrix_group, size, escapes, seed=seed)
    elif strategy == "channel swap":
        _, seconds, order = Channel_Swap(matrix_group, escapes, verbosity, seed=seed)
    elif strategy == "progressive channel swap":
        seconds = given.get("progressive_search_time_limit", 60)
        matrix = matrix_group.detach().float().cpu().numpy().copy()
        _swap_at_random(matrix, order, seconds, given.get("improvement_threshold", 1e-9), seed)
    if verbosity > 0:
        print(f"[permutation search] {strategy}: {seconds:.4f} s, {tuple(matrix_group.shape)}")
    return order


def _swap_at_random(
    matrix: Array, order: list[int], seconds: float, threshold: float, seed: int
) -> None:
    random, start = np.random.default_rng(seed), time.perf_counter()
    while time.perf_counter() - start < seconds and matrix.shape[1] > 4:
        src, dst = (int(c) for c in random.integers(matrix.shape[1], size=2))
        if src // 4 != dst // 4 and try_swap(matrix, dst, src)[1] > threshold:
            matrix[:, [src, dst]] = matrix[:, [dst, src]]
            order[src], order[dst] = order[dst], order[src]
