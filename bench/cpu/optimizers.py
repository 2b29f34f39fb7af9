# SPDX-License-Identifier: Apache-2.0
"""Host time of an eager step of anyop.torch.optim beside torch's: tensors of one element, gradients moved each step.

    python bench/cpu/optimizers.py [146 2000]

One thread, on the CPU; minima of 30 steps, in turns. Parameters are compared before a time is printed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from anyop.torch import optim

KINDS = {
    "AdamW": (optim.FusedAdamW, torch.optim.AdamW, {}),
    "SGD": (optim.FusedSGD, torch.optim.SGD, {"momentum": 0.9}),
    "Adagrad": (optim.FusedAdagrad, torch.optim.Adagrad, {}),
    "LAMB": (optim.FusedLAMB, None, {}),
    "NovoGrad": (optim.FusedNovoGrad, None, {}),
}


def sides(ours: Any, theirs: Any, options: dict, count: int) -> dict[str, Any]:
    """Each side's parameters, optimizer and times."""
    made = {"anyop": (ours, options)}
    if theirs:
        made |= {f"torch {how}": (theirs, {**options, how: True}) for how in ("fused", "foreach")}
    found = {}
    for name, (kind, given) in made.items():
        parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(count)]
        found[name] = parameters, kind(parameters, lr=1e-3, **given), []
    return found


def measure(found: dict[str, Any], count: int, repeats: int = 33) -> None:
    gradients = [[torch.full((1,), 0.5) for _ in range(count)] for _ in range(2)]
    for _ in range(repeats):
        gradients.reverse()
        for parameters, optimizer, times in found.values():
            for p, g in zip(parameters, gradients[0]):
                p.grad = g
            start = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - start)
    for parameters, _, _ in found.values():
        for p, q in zip(parameters, found["anyop"][0]):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; microseconds, minimum of 30 steps")
    for count in map(int, sys.argv[1:] or ("146", "2000")):
        for name, kinds in KINDS.items():
            found = sides(*kinds, count)
            measure(found, count)
            times = {side: f"{min(t[3:]) * 1e6:,.0f}" for side, (_, _, t) in found.items()}
            print(f"{count} tensors, {name}:", ", ".join(f"{k} {v}" for k, v in times.items()))


if __name__ == "__main__":
    main()
