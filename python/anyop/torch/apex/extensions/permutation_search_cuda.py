# SPDX-License-Identifier: Apache-2.0
"""permutation_search_cuda: what pruning to 2 of 4 keeps of a matrix whose columns are permuted; flat NumPy arrays.

Results are written into the last arguments. All run on the CPU, in which these arrays are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

import anyop

Array: TypeAlias = "np.ndarray[Any, Any]"


def sum_after_2_to_4(
    matrix: Array, rows: int, cols: int, start_col: int, end_col: int, blocks: int, threads: int,
    output: Array,
) -> int:  # fmt: skip
    """Write into output[0] what is kept of the columns from start_col to end_col; blocks and threads change nothing."""
    columns = _matrix(matrix, rows, cols)[:, start_col:end_col]
    output[0] = anyop.sum_after_2_to_4(np.ascontiguousarray(columns))
    return 0


def build_permute_map(
    matrix: Array, rows: int, cols: int, stripes: Array, num_groups: int, group_width: int,
    permutations: Array, perm_length: int, improvements: Array, best_indices: Array,
) -> int:  # fmt: skip
    """Write the best permutation of each group of stripes, and how much more it keeps than the first."""
    improvements[:num_groups], best_indices[:num_groups] = anyop.build_permute_map(
        _matrix(matrix, rows, cols),
        _whole(stripes, num_groups, group_width),
        _whole(permutations, -1, perm_length),
    )
    return 0


def check_permutations(
    matrix: Array, rows: int, cols: int, stripe_groups: Array, group_width: int, num_groups: int,
    permutations: Array, num_permutations: int, improvement: Array, permutation: Array,
) -> int:  # fmt: skip
    """Write the best permutation of the first group of stripes, and how much more it keeps than the first."""
    stripes = _whole(stripe_groups, num_groups, group_width)[0]
    orders = _whole(permutations, num_permutations, 4 * group_width)
    improvement[0], permutation[0], _ = anyop.check_permutations(
        _matrix(matrix, rows, cols), stripes, orders
    )
    return 0


def build_swap_map(
    matrix: Array, rows: int, cols: int, stripe_pairs: Array, output: Array
) -> int:  # fmt: skip
    """Write how much more is kept after each of the 16 swaps of columns of each pair of stripes."""
    pairs = _whole(stripe_pairs, -1, 2)
    output[: 16 * len(pairs)] = anyop.build_swap_map(_matrix(matrix, rows, cols), pairs).ravel()
    return 0


def _matrix(flat: Array, rows: int, cols: int) -> Array:
    return np.asarray(flat, np.float32).reshape(rows, cols)


def _whole(flat: Array, *sizes: int) -> Array:
    """Apex's numbers are uint32."""
    return np.asarray(flat).astype(np.int64).reshape(sizes)
