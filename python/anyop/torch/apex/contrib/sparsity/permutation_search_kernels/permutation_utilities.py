# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.permutation_search_kernels.permutation_utilities: what pruning to 2 of 4 keeps of a matrix."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

import anyop
from anyop.torch.apex.contrib.sparsity.sparse_masklib import m4n2_1d

Array: TypeAlias = "np.ndarray[Any, Any]"


def use_gpu(initial_override: bool = True) -> bool:
    """Whether NumPy's matrices are searched on CUDA; initial_override=False: no."""
    return initial_override and torch.cuda.is_available()


def on_device(matrix: Array | Tensor) -> Tensor:
    """The float32 matrix where it is searched: a tensor's own device, that of use_gpu for an array."""
    if isinstance(matrix, Tensor):
        return matrix.detach().float()
    device = "cuda" if use_gpu() else "cpu"
    return torch.from_numpy(np.array(matrix, np.float32)).to(device)


def as_given(matrix: Array | Tensor, found: Tensor) -> Any:
    """What was found as a tensor or an array, in the dtype of the matrix."""
    if isinstance(matrix, Tensor):
        return found.to(matrix.dtype)
    return found.cpu().numpy().astype(matrix.dtype)


def apply_2_to_4(matrix: Array) -> Array:
    """Prune the matrix where it lies."""
    matrix *= m4n2_1d(torch.from_numpy(np.asarray(matrix, np.float64)), 0.5).numpy().astype(bool)
    return matrix


def sum_after_2_to_4(matrix: Array | Tensor) -> float:
    """The sum of the magnitudes that pruning to 2 of 4 keeps."""
    return float(anyop.sum_after_2_to_4(on_device(matrix).contiguous()))


def try_swap(matrix: Array, dst: int, src: int) -> tuple[float, float]:
    """What the stripes of two columns keep once these are swapped, and how much more that is than before."""
    stripes = [4 * (src // 4), 4 * (dst // 4)]
    columns = np.concatenate([matrix[:, at : at + 4] for at in stripes], 1)
    swapped = columns.copy()
    pair = [src % 4, 4 + dst % 4]
    swapped[:, pair] = columns[:, pair[::-1]]
    kept = sum_after_2_to_4(swapped)
    return kept, kept - sum_after_2_to_4(columns)


def find_permutation(A: Array, B: Array) -> list[int]:
    """For each column of A the first of B that equals it."""
    same = (A[:, :, None] == B[:, None, :]).all(0)
    return [int(row.argmax()) for row in same if row.any()]
