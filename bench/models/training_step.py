# SPDX-License-Identifier: Apache-2.0
"""Times a training step of a decoder of transformers: as it is, by anyop.torch.replace, by torch.compile, by Liger.

    python bench/models/training_step.py [--size 0.6b] [--rows 4] [--context 1024] [--device cuda] [--dtype bfloat16]
                                  [--sides transformers,compiled,replaced,replaced+compiled] [--unmasked]

A step is the loss of random tokens as labels, its gradients, and AdamW, torch's fused one for all sides. Each side has
a copy of one random model; losses of the first step are compared before anything is timed. Sides take turns. Peak
memory is a step's on CUDA: the side's weights and numbers of AdamW, and what the step takes beyond what was there.
Liger's patch (liger-kernel) puts its rotary positions into the model's file, and so into all sides of the process:
`--sides liger` is a run of its own. --unmasked tells the model that no row is padded or packed, which compiled code
cannot look up, nor can a graph: its attention is then causal without a mask.
One line of JSON for each side is added to bench/results/training_step.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import anyop
import anyop.torch
import torch
from generate import SIZES, random_model
from harness import environment, write

APART = {"float32": 1e-4, "bfloat16": 2e-2}  # losses, in shares of them
MIB = 1 << 20


class Side:
    def __init__(
        self, model: torch.nn.Module, labels: torch.Tensor, change: Callable | None, **given: Any
    ):
        self.model, self.labels = copy.deepcopy(model), labels
        changed = change(self.model) if change else None
        self.call = self.model if changed is None else changed
        self.given = {"input_ids": self.labels, "labels": self.labels, "use_cache": False, **given}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def step(self) -> torch.Tensor:
        loss = self.call(**self.given).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def own_bytes(self) -> int:
        numbers = [x for state in self.optimizer.state.values() for x in state.values()]
        parts = [*self.model.parameters(), *numbers]
        return sum(x.numel() * x.element_size() for x in parts if x.device == self.labels.device)

    def measured(self) -> tuple[float, int]:
        """Milliseconds and, on CUDA, the peak of bytes."""
        cuda = self.labels.is_cuda
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begin = time.perf_counter()
        self.step()
        if cuda:
            torch.cuda.synchronize()
        took_ms = (time.perf_counter() - begin) * 1e3
        return took_ms, self.own_bytes() + torch.cuda.max_memory_allocated() - before if cuda else 0


class Captured(Side):
    """The same as one CUDA graph."""

    def __init__(self, *args: Any, **given: Any):
        super().__init__(*args, **given)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-5, fused=True, capturable=True
        )
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self) -> torch.Tensor:
        if self.graph is None:
            return self.captured()
        self.graph.replay()
        return self.loss

    def captured(self) -> torch.Tensor:
        """The loss of the first of three steps, behind which the graph is made."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            first, *_ = [super(Captured, self).step() for _ in range(3)]
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.cuda.graph(self.graph):
            self.loss = super().step()
        self.peak = self.own_bytes() + torch.cuda.max_memory_allocated() - before
        return first

    def measured(self) -> tuple[float, int]:
        return super().measured()[0], self.peak  # a replay allocates nothing


def replaced(model: torch.nn.Module) -> None:
    anyop.torch.replace(model, verbose=False)


def replaced_and_compiled(model: torch.nn.Module) -> Callable:
    replaced(model)
    return torch.compile(model)


def patched_by_liger(model: torch.nn.Module) -> None:
    from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model)


SIDES: dict[str, tuple[str, Callable | None]] = {
    "transformers": ("transformers", None),
    "compiled": ("transformers, compiled", torch.compile),
    "replaced": ("replaced", replaced),
    "replaced+compiled": ("replaced, compiled", replaced_and_compiled),
    "replaced+graph": ("replaced, one graph", replaced),
    "liger": ("liger", patched_by_liger),
}


def made_sides(options: argparse.Namespace) -> dict[str, Side]:
    model = random_model(options.size, options.dtype, options.device).train()
    V = SIZES[options.size][-1]
    shape = (options.rows, options.context)
    labels = torch.randint(3, V, shape, device=options.device)
    given = {"attention_mask": {"full_attention": None}} if options.unmasked else {}
    sides = {}
    for wanted in options.sides.split(","):
        name, change = SIDES[wanted]
        kind = Captured if wanted.endswith("+graph") else Side
        sides[name] = kind(model, labels, change, **given)
    return sides


def main() -> None:
    options = parse_arguments()
    anyop.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    sides = made_sides(options)
    losses = {name: side.step().item() for name, side in sides.items()}
    first, right = next(iter(losses.items()))
    for name, loss in losses.items():
        if not abs(loss - right) <= APART[options.dtype] * right:
            raise SystemExit(f"{name}: the loss is {loss}, {first}: {right}; nothing was timed")
    times: dict[str, list] = {name: [] for name in sides}
    for turn in range(options.rounds + 1):
        for name in sides if turn % 2 else [*sides][::-1]:
            found = sides[name].measured()
            times[name] += [found] * (turn > 0)  # the first is to warm up
    rows = []
    for name, found in times.items():
        spent_ms, peaks = zip(*found)
        row = {
            key: getattr(options, key)
            for key in ("size", "rows", "context", "dtype", "device", "threads", "unmasked")
        }
        row |= {"gpu": torch.cuda.get_device_name()} if options.device == "cuda" else {}
        row |= {"side": name, "step_ms": round(min(spent_ms), 3)}
        row |= {"step_ms_median": round(statistics.median(spent_ms), 3), "loss": losses[name]}
        row |= {"peak_mib": round(max(peaks) / MIB, 1)} if options.device == "cuda" else {}
        rows.append(row)
        peak = f", peak {row['peak_mib']} MiB" if "peak_mib" in row else ""
        print(f"{name:22} {row['step_ms']:9.2f} ms (median {row['step_ms_median']:.2f}){peak}")
    if not options.dry:
        write("training_step", rows, environment(anyop, torch))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", choices=list(SIZES), default="0.1b")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=tuple(APART), default="float32")
    add("--rows", type=int, default=4)
    add("--context", type=int, default=128)
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=5)
    add("--sides", default="transformers,replaced", help=f"some of {', '.join(SIDES)}")
    add("--unmasked", action="store_true")
    add("--dry", action="store_true", help="write no results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
