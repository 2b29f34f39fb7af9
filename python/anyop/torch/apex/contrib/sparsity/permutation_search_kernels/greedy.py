# SPDX-License-Identifier: Apache-2.0
"""Searches for an order of columns: groups of stripes are reordered, those that gain most first, until none gains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

import anyop

# A search ends where no group gains this share of what is kept.
LEAST_GAIN = 1e-6

# Of a matrix and groups of stripes: the gain of the best reordering of each, and its number.
Judge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Search:
    """A matrix, the order that its columns have got, and the best one so far."""

    def __init__(self, matrix: Tensor, groups: Tensor, orders: Tensor, judge: Judge) -> None:
        """groups: (G, W) of stripes. orders: (P, 4 W), by whose number a group's columns are reordered."""
        self.matrix = matrix.clone()
        self.order = torch.arange(matrix.shape[1])
        self._groups, self._orders, self._judge = groups, orders, judge
        self._columns = (groups[:, :, None] * 4 + torch.arange(4)).flatten(1)
        self._gains = torch.zeros(len(groups))
        self._best = torch.zeros(len(groups), dtype=torch.int64)
        self._changed = torch.ones(matrix.shape[1] // 4, dtype=torch.bool)  # stripes

    def kept(self) -> float:
        return float(anyop.sum_after_2_to_4(self.matrix))

    def run(self, escapes: int, seed: int, say: Callable[[str], None]) -> None:
        """Reorder until nothing gains; then, so many times, a group at random, and on. The best order remains."""
        random = np.random.default_rng(seed)
        least = LEAST_GAIN * self.kept()
        best, order, matrix = -np.inf, self.order.clone(), self.matrix.clone()
        while True:
            done = self._round(least)
            say(f"{done} groups reordered, {self.kept():.6g} kept")
            if done:
                continue
            if self.kept() > best:
                best, order, matrix = self.kept(), self.order.clone(), self.matrix.clone()
            if escapes <= 0 or len(self._groups) == 0:
                break
            escapes -= 1
            self._escape(random)
        self.order, self.matrix = order, matrix

    def _round(self, least: float) -> int:
        """Judge what changed, and reorder groups that have no stripe in common; how many were."""
        stale = self._changed[self._groups].any(1).nonzero()[:, 0]
        gains, best = self._judge(self.matrix, self._groups[stale].to(self.matrix.device))
        self._gains[stale], self._best[stale] = gains.cpu(), best.cpu().long()
        self._changed[:] = False
        good = (self._gains > least).nonzero()[:, 0]
        done = 0
        for g in good[self._gains[good].argsort(descending=True, stable=True)].tolist():
            if not self._changed[self._groups[g]].any():
                self._reorder(g, self._orders[self._best[g]])
                done += 1
        return done

    def _reorder(self, group: int, order: Tensor) -> None:
        to = self._columns[group]
        columns = to[order]
        self.order[to] = self.order[columns]
        device = self.matrix.device
        self.matrix[:, to.to(device)] = self.matrix[:, columns.to(device)]
        self._changed[self._groups[group]] = True

    def _escape(self, random: np.random.Generator) -> None:
        """Swap two columns of a group at random, one of each half."""
        group, half = int(random.integers(len(self._groups))), self._columns.shape[1] // 2
        order = torch.arange(2 * half)
        left, right = int(random.integers(half)), half + int(random.integers(half))
        order[left], order[right] = right, left
        self._reorder(group, order)


def search(
    matrix: Tensor, groups: Tensor, orders: Tensor, judge: Judge, escapes: int,
    permutation: Sequence[int] | None, seed: int, verbosity: int = 0,
) -> tuple[Tensor, float, list[int]]:  # fmt: skip
    """The matrix in the order that was found, the seconds it took, and the permutation in that order."""
    start = time.perf_counter()

    def say(text: str) -> None:
        if verbosity > 10:
            print(f"\t{text}, {time.perf_counter() - start:.2f} s")

    one = Search(matrix, groups, orders, judge)
    one.run(escapes, seed, say)
    given = range(matrix.shape[1]) if permutation is None else permutation
    return one.matrix, time.perf_counter() - start, [int(given[c]) for c in one.order]
