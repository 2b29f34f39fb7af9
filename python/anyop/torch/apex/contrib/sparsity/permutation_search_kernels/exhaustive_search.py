# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.permutation_search_kernels.exhaustive_search: all orders of groups of stripes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

import anyop
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.greedy import search
from anyop.torch.apex.contrib.sparsity.permutation_search_kernels.permutation_utilities import (
    Array,
    as_given,
    on_device,
)

# 5,775 orders of a group; of four stripes there are 2.6 million.
WIDEST = 12


def predict_unique_combinations(C: int, M: int) -> int:
    """In how many ways C columns are C / M stripes, where neither order matters."""
    stripes = C // M
    ways: int = math.factorial(C) // (math.factorial(M) ** stripes * math.factorial(stripes))
    return ways


@cache
def generate_all_unique_combinations(
    C: int, M: int, must_use_all_groups: bool = False
) -> list[Array]:
    """These ways, stripes side by side; the first is the order that there is."""

    def ways(columns: tuple[int, ...]) -> Any:
        if not columns:
            yield ()
        for rest in combinations(columns[1:], M - 1) if columns else ():
            stripe = (columns[0], *rest)
            for others in ways(tuple(c for c in columns if c not in stripe)):
                yield stripe + others

    return [np.array(way) for way in ways(tuple(range(C)))]


def generate_stripe_groups(num_stripes: int, window_size: int) -> list[tuple[int, ...]]:
    """All groups of so many stripes."""
    return list(combinations(range(num_stripes), window_size))


def Exhaustive_Search(  # noqa: N802
    matrix: Array | Tensor, stripe_group_size: int = -1, escape_attempts: int = 0,
    permutation: Sequence[int] | None = None, seed: int = 1,
) -> tuple[Any, float, list[int]]:  # fmt: skip
    """Reorder columns, best group of stripes first, until none gains.

    matrix:             (R, 4 S) array or tensor, which stays as it is.
    stripe_group_size:  columns of a group, 4, 8 or 12; -1, or as many as the matrix has: all at once.
    escape_attempts:    how often two columns are swapped at random where nothing gains; the best order is returned.
    permutation:        the order that the columns have already.
    Returns   the matrix reordered, the seconds, the permutation: a list.
    Raises    ValueError where columns are not whole stripes, or a group has more than 12.
    """
    given, columns = on_device(matrix), matrix.shape[1]
    if stripe_group_size == 12 and columns > 512:
        return _halves(matrix, escape_attempts, permutation, seed)
    window = columns if stripe_group_size == -1 else min(stripe_group_size, columns)
    if columns % 4 or window % 4 or window > WIDEST:
        raise ValueError(
            f"Exhaustive_Search: {columns} columns in groups of {window}, "
            f"expected multiples of 4, groups up to {WIDEST}"
        )
    groups = torch.tensor(generate_stripe_groups(columns // 4, window // 4), dtype=torch.int64)
    orders = torch.from_numpy(np.array(generate_all_unique_combinations(window, 4)).astype(int))
    judge = partial(_judge, orders.to(given.device))
    escapes = escape_attempts if window < columns else 0
    found = search(
        given, groups.reshape(-1, window // 4), orders, judge, escapes, permutation, seed
    )
    return as_given(matrix, found[0]), *found[1:]


def _judge(orders: Tensor, matrix: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    gains, best = anyop.build_permute_map(matrix, groups, orders)
    return gains, best


def _halves(
    matrix: Array | Tensor, escapes: int, permutation: Sequence[int] | None, seed: int
) -> tuple[Any, float, list[int]]:
    """Groups of 12 of each half, then groups of 8 of both."""
    half = matrix.shape[1] // 8 * 4
    order: list[int] = list(range(matrix.shape[1]) if permutation is None else permutation)
    seconds = 0.0
    for part in (slice(None, half), slice(half, None)):
        _, took, order[part] = Exhaustive_Search(
            matrix[:, part], 12, escapes, list(range(matrix.shape[1]))[part], seed
        )
        seconds += took
    given = range(matrix.shape[1]) if permutation is None else permutation
    found, took, order = Exhaustive_Search(
        matrix[:, order], 8, 10 * max(escapes, 100), [int(given[c]) for c in order], seed
    )
    return found, seconds + took, order
