# SPDX-License-Identifier: Apache-2.0
"""apex.contrib.sparsity.sparse_masklib: which weights stay when 2 of 4 side by side, or of 4 by 4, become 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, product

import torch
from torch import Tensor

__all__ = ["create_mask", "fill", "m4n2_1d", "m4n2_2d_best", "m4n2_2d_greedy"]


def fill(x: Tensor) -> float:
    """The share of elements that are not 0."""
    share: float = torch.count_nonzero(x).item() / x.numel()
    return share


def mn_1d_best(matrix: Tensor, m: int, n: int) -> Tensor:
    """Of each m elements of a row the n of greatest magnitude stay, of equal ones the first; int32."""
    rows, columns = matrix.shape
    padded = torch.nn.functional.pad(matrix.abs(), (0, -columns % m)).reshape(-1, m)
    kept = padded.sort(dim=1, descending=True, stable=True).indices[:, :n]
    mask = torch.zeros_like(padded, dtype=torch.int32).scatter_(1, kept, 1)
    return mask.reshape(rows, -1)[:, :columns].contiguous()


def m4n2_1d(mat: Tensor, density: float) -> Tensor:
    """2 of 4 elements of a row stay; density changes nothing."""
    return mn_1d_best(mat, 4, 2)


def _blocks(matrix: Tensor, m: int) -> Tensor:
    """The whole blocks of m by m, flat."""
    rows, columns = (size // m for size in matrix.shape)
    cut = matrix[: rows * m, : columns * m].reshape(rows, m, columns, m)
    return cut.transpose(1, 2).reshape(-1, m * m)


def _put(mask_of_blocks: Tensor, matrix: Tensor, m: int) -> Tensor:
    """The mask of a matrix; what is behind its whole blocks stays."""
    rows, columns = (size // m for size in matrix.shape)
    mask = torch.ones_like(matrix, dtype=torch.int32)
    whole = mask_of_blocks.reshape(rows, columns, m, m).transpose(1, 2)
    mask[: rows * m, : columns * m] = whole.reshape(rows * m, columns * m).to(mask.dtype)
    return mask


@cache
def _patterns_2d(m: int, n: int) -> Tensor:
    """All blocks of m by m with n ones in each row and column, flat."""
    rows = [tuple(int(i in ones) for i in range(m)) for ones in combinations(range(m), n)]
    good = [p for p in product(rows, repeat=m) if all(sum(column) == n for column in zip(*p))]
    return torch.tensor(good, dtype=torch.float32).reshape(-1, m * m)


def mn_2d_best(matrix: Tensor, m: int, n: int) -> Tensor:
    """Of m elements n stay in rows and in columns of each block: the pattern of the greatest sum."""
    patterns = _patterns_2d(m, n).to(matrix.device)
    best = (_blocks(matrix, m).abs().float() @ patterns.T).argmax(dim=1)
    return _put(patterns[best], matrix, m)


def m4n2_2d_best(mat: Tensor, density: float) -> Tensor:
    """Of 4 by 4 elements 2 of each row and column stay, the best ones; density changes nothing."""
    return mn_2d_best(mat, 4, 2)


def mn_2d_greedy(matrix: Tensor, m: int, n: int) -> Tensor:
    """In each block elements stay from the greatest on, while their row and column have room; all blocks at once."""
    blocks = _blocks(matrix, m).abs()
    order = blocks.sort(dim=1, descending=True, stable=True).indices
    mask = torch.zeros_like(blocks, dtype=torch.int32)
    of_rows, of_columns = (mask.new_zeros(len(blocks), m) for _ in range(2))
    for at in order.T[..., None]:  # (blocks, 1): the next element of each
        row, column = at // m, at % m
        room = (of_rows.gather(1, row) < n) & (of_columns.gather(1, column) < n)
        for counts, index in ((mask, at), (of_rows, row), (of_columns, column)):
            counts.scatter_add_(1, index, room.to(counts.dtype))
    return _put(mask, matrix, m)


def m4n2_2d_greedy(mat: Tensor, density: float) -> Tensor:
    """Of 4 by 4 elements at most 2 of each row and column stay, greatest first; density changes nothing."""
    return mn_2d_greedy(mat, 4, 2)


_CALCULATORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "m4n2_1d": m4n2_1d,
    "m4n2_2d_best": m4n2_2d_best,
    "m4n2_2d_greedy": m4n2_2d_greedy,
}


def create_mask(tensor: Tensor, pattern: str = "m4n2_1d", density: float = 0.5) -> Tensor:
    """1 where a weight stays and 0 elsewhere, in the tensor's shape and dtype.

    Groups lie along the columns of (K, C), and along the input channels C of weights of convolutions,
    (K, C, R) and (K, C, R, S). ValueError for another rank or pattern.
    """
    calculate = _CALCULATORS.get(pattern)
    if calculate is None:
        raise ValueError(f"pattern is {pattern!r}, expected one of {', '.join(_CALCULATORS)}")
    if not 1 <= tensor.dim() <= 4:
        raise ValueError(f"the tensor has {tensor.dim()} dimensions, expected 1 to 4")
    channels_last = tensor.movedim(1, -1) if tensor.dim() > 1 else tensor
    if tensor.dim() == 4:  # as Apex: blocks of rows are those of K
        channels_last = tensor.permute(2, 3, 0, 1)
    matrix = channels_last.detach().float().reshape(-1, channels_last.shape[-1])
    mask = calculate(matrix, density).reshape(channels_last.shape)
    if tensor.dim() == 4:
        mask = mask.permute(2, 3, 0, 1)
    elif tensor.dim() > 1:
        mask = mask.movedim(-1, 1)
    return mask.contiguous().to(tensor.dtype)
