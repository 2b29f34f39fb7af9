# SPDX-License-Identifier: Apache-2.0
"""Judges one entry of OpInfo on two devices: results, gradients, in-place and out= forms of its first samples."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from opinfo_tensors import NEAR, difference, moved, other_strides
from torch.utils._pytree import tree_leaves, tree_map

PARTS = ("forward", "gradients", "in place", "out")
# Whose values nobody sets: compared by shape, dtype and device.
UNSET = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
STAYS = {"tensor_split"}  # torch wants its second tensor on the CPU


@dataclass
class Count:
    """What was compared of the entries of OpInfo, one dtype."""

    entries: Counter = field(default_factory=Counter)  # all, without the dtype, compared, right...
    calls: Counter = field(default_factory=Counter)  # of each part: compared, right, bitwise
    failures: list[tuple[str, str, str]] = field(default_factory=list)  # entry, part, reason
    near: list[tuple[str, str]] = field(default_factory=list)  # entry, part: right in other bits
    fallback: dict[str, str] = field(default_factory=dict)  # entry: what the device says

    def add(self, other: Count) -> None:
        self.failures += other.failures
        self.near += other.near
        for name in ("entries", "calls", "fallback"):
            getattr(self, name).update(getattr(other, name))

    def reasons(self) -> dict[str, str]:
        """Of each wrong entry, the first."""
        return {name: f"{part}: {text}" for name, part, text in reversed(self.failures)}

    @classmethod
    def of_death(cls, name: str, seconds: int) -> Count:
        text = f"ends the process, or takes more than {seconds} s"
        return cls(Counter(all=1, compared=1), failures=[(name, "forward", text)])


@dataclass(frozen=True)
class Run:
    """One sample on both devices."""

    info: Any
    sample: tuple
    source: str
    target: str

    def on(self, device: str) -> tuple:
        """(input, args, kwargs), copied."""
        if self.info.name in STAYS:
            return (moved(self.sample[0], self.source, device), *self.sample[1:])
        return moved(self.sample, self.source, device)

    def forward(self, device: str) -> Any:
        x, args, kwargs = self.on(device)
        return self.info(x, *args, **kwargs)

    def gradients(self, device: str) -> Any:
        x, args, kwargs = self.on(device)
        leaves = [t for t in tree_leaves((x, args, kwargs)) if is_trained(t)]
        results = [t for t in tree_leaves(self.info(x, *args, **kwargs)) if is_trained(t)]
        if not leaves or not results:
            return None
        seeds = [moved(seed_for(result), "cpu", str(result.device)) for result in results]
        return torch.autograd.grad(results, leaves, seeds, allow_unused=True)

    def in_place(self, device: str) -> Any:
        x, args, kwargs = tree_map(plain, self.on(device))
        x = x.clone() if isinstance(x, torch.Tensor) else [item.clone() for item in x]
        found = self.info.inplace_variant(x, *args, **kwargs)
        if isinstance(x, torch.Tensor) and found is not x:
            raise AssertionError("returns another tensor than its argument")
        return x

    def out(self, device: str) -> Any:
        x, args, kwargs = tree_map(plain, self.on(device))
        outs = tree_map(lambda t: t.new_empty(0), self.info(x, *args, **kwargs))
        self.info(x, *args, **kwargs, out=outs)
        return outs


def is_trained(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def seed_for(result: torch.Tensor) -> torch.Tensor:
    seed = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
    return (seed * (1 + 0.5j) if result.is_complex() else seed).to(result.dtype)


def seeded(function: Callable[[str], Any], device: str) -> Any:
    torch.manual_seed(1)
    return function(device)


def judge(run: Run, function: Callable[[str], Any], count: Counter, part: str) -> str | None:
    """What is wrong with a part of a sample on the device; NEAR; None: nothing, or nothing to compare."""
    try:
        expected = seeded(function, run.source)
    except Exception:  # torch refuses
        return None
    if expected is None:
        return None
    values = run.info.name not in UNSET
    try:
        found = seeded(function, run.target)
    except Exception as error:
        count[f"{part} compared"] += 1
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    text = difference(expected, found, run.source, run.target, values)
    if text not in (None, NEAR):
        again = difference(expected, seeded(function, run.source), run.source, run.source, values)
        if again not in (None, NEAR):
            count["torch itself gives other values each time"] += 1
            return None
    count[f"{part} compared"] += 1
    count[f"{part} right"] += text in (None, NEAR)
    count[f"{part} bitwise"] += text is None
    count["other strides"] += other_strides(expected, found)
    return text


def parts_of(info: Any, run: Run, number: int) -> Iterator[tuple[str, Callable]]:
    yield "forward", run.forward
    if any(map(is_trained, tree_leaves(run.sample))):
        yield "gradients", run.gradients
    if info.inplace_variant is not None:
        yield "in place", run.in_place
    if info.supports_out and number == 0:
        yield "out", run.out


def run_entry(info: Any, dtype: torch.dtype, samples: int | None, sides: tuple[str, str]) -> Count:
    count, (source, target) = Count(), sides
    count.entries["all"] += 1
    if dtype not in info.supported_dtypes(source):
        count.entries["without the dtype"] += 1
        return count
    torch.manual_seed(0)
    trains = info.supports_autograd and dtype in info.supported_backward_dtypes(source)
    found = itertools.islice(info.sample_inputs(source, dtype, requires_grad=trains), samples)
    for number, sample in enumerate(list(found)):
        run = Run(info, (sample.input, sample.args, sample.kwargs), source, target)
        for part, function in parts_of(info, run, number):
            text = judge(run, function, count.calls, part)
            if text == NEAR:
                count.near.append((info.formatted_name, part))
            elif text:
                count.failures.append((info.formatted_name, part, text))
    judge_entry(info.formatted_name, count)
    return count


def judge_entry(name: str, count: Count) -> None:
    asks = [text for _, _, text in count.failures if "ANYOP_FALLBACK" in text]
    if asks:
        count.fallback[name], count.failures, count.near = asks[0], [], []
        count.calls.clear()
        return
    if not any(count.calls[f"{part} compared"] for part in PARTS):
        count.entries["nothing compared"] += 1
        return
    right = not count.failures
    count.entries.update({"compared": 1, "right": right, "bitwise": right and not count.near})
