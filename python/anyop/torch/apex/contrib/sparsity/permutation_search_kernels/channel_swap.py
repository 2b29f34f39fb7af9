# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.permutation_search_kernels.channel_swap: single columns of two stripes are swapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import anyop
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.exhaustive_search import (
    generate_stripe_groups,
)
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.greedy import search
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.permutation_utilities import (
    Array,
    as_given,
    on_device,
)


def stripes_and_swap_idx_to_columns(stripe0: int, stripe1: int, idx: int) -> tuple[int, int]:
    """The two columns that swap number idx of a pair of stripes swaps."""
    return 4 * stripe0 + idx // 4, 4 * stripe1 + idx % 4


def columns_to_stripes_and_swap_idx(col0: int, col1: int) -> tuple[int, int, int]:
    """The stripes of two columns, and the number of their swap."""
    return col0 // 4, col1 // 4, col0 % 4 * 4 + col1 % 4


def Channel_Swap(  # noqa: N802
    matrix: Array | Tensor, escape_attempts: int = 0, verbosity: int = 0,
    permutation: Sequence[int] | None = None, seed: int = 1,
) -> tuple[Any, float, list[int]]:  # fmt: skip
    """Swap columns of two stripes, best swap first, until none gains; else as Exhaustive_Search.

    Cheaper than that one, and for matrices of many columns: a pair has 16 swaps.
    """
    given = on_device(matrix)
    if matrix.shape[1] % 4:
        raise ValueError(f"Channel_Swap: {matrix.shape[1]} columns, expected a multiple of 4")
    pairs = torch.tensor(generate_stripe_groups(matrix.shape[1] // 4, 2), dtype=torch.int64)
    swaps = torch.arange(8).repeat(16, 1)
    for idx, swap in enumerate(swaps):
        a, b = stripes_and_swap_idx_to_columns(0, 1, idx)
        swap[[a, b]] = swap[[b, a]]
    found = search(
        given, pairs.reshape(-1, 2), swaps, _judge, escape_attempts, permutation, seed, verbosity
    )
    return as_given(matrix, found[0]), *found[1:]


def _judge(matrix: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    gains = anyop.build_swap_map(matrix, pairs)
    best = gains.max(1)
    return best.values, best.indices
