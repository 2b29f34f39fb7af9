# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.optim's optimizers and what they are compared with: pairs, parameters, gradients, steps."""

from __future__ import annotations

import apex_formulas
import pytest
import torch
from anyop.torch.optim import (
    FusedAdagrad,
    FusedAdam,
    FusedAdamW,
    FusedLAMB,
    FusedNovoGrad,
    FusedSGD,
)

PAIRS = {
    "Adam": (FusedAdam, torch.optim.Adam),
    "AdamW": (FusedAdamW, torch.optim.AdamW),
    "SGD": (FusedSGD, torch.optim.SGD),
    "Adagrad": (FusedAdagrad, torch.optim.Adagrad),
    "LAMB": (FusedLAMB, apex_formulas.LAMB),
    "NovoGrad": (FusedNovoGrad, apex_formulas.NovoGrad),
}
STATES = {
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "SGD": ("momentum_buffer",),
    "Adagrad": ("sum",),
    "LAMB": ("exp_avg", "exp_avg_sq"),
    "NovoGrad": ("exp_avg",),
}
NAMES = pytest.mark.parametrize("name", PAIRS)
SHAPES = [(5,), (64, 33), (), (2, 3, 8, 8), (0, 4)]
CLOSE = {
    "rtol": 2e-5,
    "atol": 2e-6,
}  # a quotient, a root and five sums of float32; 20 steps of 1e-2


def make(dtype=torch.float32, seed=0) -> list:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator) for shape in SHAPES]
    made[3] = made[3].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(p.to(dtype)) for p in made]


def give(*lists, seed, dtype=None, scale=1.0) -> None:
    """The same gradients to all lists, each in a new tensor."""
    generator = torch.Generator().manual_seed(seed)
    for row in zip(*lists):
        drawn = torch.randn(row[0].shape, generator=generator)
        for p in row:
            p.grad = (drawn * scale).to(dtype or p.dtype)  # contiguous, also of channels_last


def made_of(name, *lists, lr=1e-2, kinds=None, **options) -> list:
    """Our optimizer of the first list, torch's of the second."""
    if name == "SGD":
        options.setdefault("momentum", 0.9)
    return [kind(p, lr=lr, **options) for kind, p in zip(kinds or PAIRS[name], lists)]


def step_all(optimizers, lists, seeds, **options) -> None:
    for seed in seeds:
        give(*lists, seed=seed, **options)
        for optimizer in optimizers:
            optimizer.step()


def close(ours, theirs, **bounds) -> None:
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p.data, q.data, **(bounds or CLOSE))
