# SPDX-License-Identifier: Apache-2.0
"""What the model does on each device that is compared: the same weights, tokens and seeds."""

from __future__ import annotations

import argparse
import contextlib
import os

import torch

from . import model as qwen3
from .inference import generate, infer, logits
from .training import Trainer

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class Work:
    """Weights are made, or read, for each device anew: training has changed those of the last one."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self.is_first = not options.ddp or os.environ["RANK"] == "0"
        self.shards = int(os.environ["WORLD_SIZE"]) if options.ddp else options.shards
        self.routes: dict[str, list[str]] = {}  # lines about inference and training on anyop

    def results(self, device: str, ddp: bool = False) -> dict:
        """Logits, tokens and losses, in memory of the CPU, and tokens per second."""
        options = self._options
        model = qwen3.make(options)
        tied = is_tied(model)
        found = {"model": qwen3.describe(model)}
        model = model.to(device)
        if is_tied(model) != tied:
            raise RuntimeError(f"to({device!r}) has untied the weights of embedding and head")
        ids = qwen3.numbers(model, options.rows, options.length).to(device)
        wait = getattr(torch, device).synchronize
        if self.is_first:
            with self._counted(device, "inference"):  # and warms up
                generate(model, ids, 2)
            found |= infer(model, ids, options.tokens, wait)
        if options.steps:
            trainer = Trainer(model, ids, options, self.shards, ddp)
            with self._counted(device, "training"):
                first = trainer.step()
            found |= trainer.train(first, options.steps - 1, wait)
            found["logits after training"] = logits(model, ids)
        return found

    def _counted(self, device: str, what: str) -> contextlib.AbstractContextManager:
        if device != "anyop":
            return contextlib.nullcontext()
        from .routes_used import counted  # imports the device

        return counted(self.routes.setdefault(what, []))


def is_tied(model: torch.nn.Module) -> bool:
    return model.get_parameter(HEAD) is model.get_parameter(EMBEDDING)
