# SPDX-License-Identifier: Apache-2.0
"""Every overload that writes, with what it writes in the memory of what it reads: right, or refused by name.

    python tests/conformance/aten/overlap_work.py [NumPy or torch [one overload in so many]]

An argument that is read and one that is written, of one dtype, are put at the same address, and the written one
half-way into the other; right is what torch returns when they lie apart. Two that are written are refused. What torch's
kernels do with such memory depends on the CPU: ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA make it another one.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import calls
import compare
import numpy as np
import oracle
import torch
from anyop import aten
from hazards_case import CLEAR
from inputs import arrays

WIDE = 67
Path = tuple[int | str, ...]  # where an array stands: (argument,) or (argument, item)


def placed(value: Any, at: Path = ()) -> Iterator[tuple[Path, np.ndarray]]:
    if isinstance(value, np.ndarray) and value.size:
        yield at, value
    if isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from placed(item, (*at, key))


def replaced(value: Any, new: dict[Path, Any], at: Path = ()) -> Any:
    if at in new:
        return new[at]
    if isinstance(value, dict):
        return {key: replaced(item, new, (*at, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replaced(item, new, (*at, n)) for n, item in enumerate(value)]
    return value


def overlapping(read: np.ndarray, written: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Both in one memory, the second from an element of the first on; what both hold is of the first."""
    memory = np.zeros(max(read.size, shift + written.size), read.dtype)
    memory[shift : shift + written.size] = written.ravel()
    memory[: read.size] = read.ravel()
    return (
        memory[: read.size].reshape(read.shape),
        memory[shift : shift + written.size].reshape(written.shape),
    )


def wide(array: np.ndarray) -> np.ndarray:
    """The same elements many times, for loops over vectors."""
    return np.repeat(array[None], WIDE, 0) if array.ndim else array


def called(name: str, args: list, kwargs: dict, framework: str) -> list:
    tensors: dict[int, torch.Tensor] = {}

    def put(value):
        if isinstance(value, list):
            return [put(item) for item in value]
        if isinstance(value, np.ndarray) and framework == "torch":
            return tensors.setdefault(id(value), torch.from_numpy(value))
        return value

    torch.manual_seed(oracle.SEED)
    named = {key: put(value) for key, value in kwargs.items()}
    with torch.no_grad():
        full = name if "." in name else name + ".default"
        found = compare.leaves(aten.call(full, *put(list(args)), **named))
    return [oracle.to_numpy(f) if isinstance(f, torch.Tensor) else f for f in found]


class Tried:
    """The calls of one overload, and what came of them."""

    def __init__(self, overload: oracle.Overload, framework: str) -> None:
        self.overload, self.framework = overload, framework
        self.counts: Counter[str] = Counter()

    def all_calls(self) -> None:
        for sample, call in enumerate(calls.calls_of(self.overload.name)):
            try:
                args, kwargs = arrays(call, sample)
                forms = compare.functional(self.overload, args, kwargs)
                kwargs = compare.with_outs(self.overload, kwargs, forms)
                names = [param.name for param in self.overload.params]
                kwargs = {**dict(zip(names, args)), **kwargs}
                compare.torch_side(self.overload, (), kwargs)
            except oracle.Refused:
                continue
            self.pairs(kwargs)
            if "pointwise" in self.overload.tags:
                self.pairs(replaced(kwargs, {at: wide(a) for at, a in placed(kwargs)}))

    def pairs(self, kwargs: dict) -> None:
        by_name = {param.name: param for param in self.overload.params}
        found = [(at, array, by_name[at[0]].writes) for at, array in placed(kwargs)]
        for number, (at, array, writes) in enumerate(found):
            for other_at, other, other_writes in found:
                if at == other_at or not writes or array.dtype != other.dtype:
                    continue
                if not other_writes:
                    for shift in {0, (other.size + 1) // 2} - {other.size}:
                        read, written = overlapping(other, array, shift)
                        new = {at: written, other_at: read}
                        self.right(replaced(kwargs, new), number)
                elif str(at) < str(other_at):
                    first, second = overlapping(other, array, 0)
                    self.refused(replaced(kwargs, {at: second, other_at: first}))

    def right(self, kwargs: dict, number: int) -> None:
        try:
            expected = compare.torch_side(self.overload, (), kwargs)
        except oracle.Refused:
            return
        target = [array for _, array in placed(kwargs)][number]
        expected_target = [a for a in expected.arrays if a.size][number]
        try:
            found = called(self.overload.name, [], kwargs, self.framework)
        except CLEAR as error:
            assert self.overload.base in str(error) or self.framework == "torch", error
            self.counts["refused"] += 1
            return
        for one, (f, e) in enumerate(zip(found, expected.results)):
            self.same(f, e, f"result {one}", kwargs)
        self.same(target, expected_target, "what is written", kwargs)
        self.counts["right"] += 1

    def same(self, found: Any, expected: Any, what: str, kwargs: dict) -> None:
        if compare.is_unset(self.overload):
            return
        verdict = compare.difference(found, expected)
        if verdict not in ("", "close"):
            raise AssertionError(f"{self.overload.name}: {what} is {verdict}; {kwargs!r:.300}")

    def refused(self, kwargs: dict) -> None:
        try:
            found = called(self.overload.name, [], kwargs, self.framework)
        except ValueError as error:
            assert "write both" in str(error), error
            self.counts["two written, refused"] += 1
        except CLEAR:
            self.counts["refused"] += 1
        else:
            raise AssertionError(f"{self.overload.name} wrote two results into one memory: {found}")


def work(framework: str, step: int) -> int:
    warnings.simplefilter("ignore")
    totals: Counter[str] = Counter()
    wrong = 0
    writing = [
        overload
        for overload in oracle.overloads().values()
        if overload.kind in ("out", "in-place") and not compare.is_moved(overload)
    ]
    for overload in writing[::step]:
        tried = Tried(overload, framework)
        try:
            tried.all_calls()
        except AssertionError as error:
            wrong += 1
            print(f"wrong: {error}")
        totals += tried.counts
        totals["overloads"] += bool(tried.counts)
        totals["elementwise ones"] += bool(tried.counts) and "pointwise" in overload.tags
    capability = torch.backends.cpu.get_cpu_capability()
    counted = ", ".join(f"{count:,} {what}" for what, count in sorted(totals.items()))
    print(f"{framework} on {capability}: {counted}, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "NumPy"
    sys.exit(1 if work(chosen, int(sys.argv[2]) if len(sys.argv) > 2 else 1) else 0)
