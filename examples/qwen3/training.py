# SPDX-License-Identifier: Apache-2.0
"""Trains on one batch by AdamW, in one process or in several (DDP)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

ADAMW = {"fused": {"fused": True}, "foreach": {"foreach": True}, "plain": {"foreach": False}}


class Trainer:
    """Lets the model learn its batch, (rows, length), by heart.

    shards: parts of the batch. In one process gradients are those of all parts, each divided by their number. With
            ddp this process computes its own part, and DDP takes the mean: the same bits, as long as there are two.
    """

    def __init__(
        self, model, batch: torch.Tensor, options: argparse.Namespace, shards: int, ddp: bool
    ):
        self._parts = batch.chunk(shards)
        self._tokens = batch.numel()
        self._ddp = ddp
        model.train()
        self._model = DistributedDataParallel(model) if ddp else model
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=options.rate, **ADAMW[options.adamw]
        )

    def step(self) -> torch.Tensor:
        """The loss of the whole batch, before the step."""
        self._optimizer.zero_grad()
        loss = self._own_part() if self._ddp else sum(map(self._part, self._parts))
        self._optimizer.step()
        return loss

    def train(self, first: torch.Tensor, steps: int, wait: Callable[[], None]) -> dict:
        """Losses behind the first, and tokens per second; wait returns when the device is done."""
        losses = [first]
        wait()
        begin = time.perf_counter()
        losses += [self.step() for _ in range(steps)]
        wait()
        speed = self._tokens * steps / (time.perf_counter() - begin)
        return {"losses": torch.stack(losses).float().cpu(), "training_per_s": speed}

    def _part(self, part: torch.Tensor) -> torch.Tensor:
        loss = self._model(input_ids=part, labels=part).loss / len(self._parts)
        loss.backward()
        return loss.detach()

    def _own_part(self) -> torch.Tensor:
        part = self._parts[distributed.get_rank()]
        loss = self._model(input_ids=part, labels=part).loss
        loss.backward()
        mean = loss.detach() / len(self._parts)
        distributed.all_reduce(mean)
        return mean
