# SPDX-License-Identifier: Apache-2.0
"""Times operators at the sizes of their [bench] sections, each beside a plain copy of as many bytes.

A call reads every argument once and writes every result once: those are its bytes. Both sides write to memory that is
there already and take turns, so that both see the same machine.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import anyop
from anyop.cases.callers import TorchCudaCaller
from anyop.cases.draw import Drawer
from anyop.cases.dtype_choices import DtypeChoice, choices_here
from anyop.cases.good_cases import Case
from anyop.cases.sizes import evaluate
from anyop.cases.subject import Subject
from anyop.cases.values import Built, build, place_outputs
from anyop.testing.check import check_values
from anyop.testing.refusal import Good
from anyop.testing.standard import has_reference
from anyop.testing.torch_memory import through_torch

_ROUND_NS = 2_000_000  # one side calls at least this long before the other's turn
_MOST_CHECKED = 1 << 26  # elements, and operations: above, a reference in float64 may take minutes
_SHARED_BYTES = 4 << 20  # a copy of more is divided among the threads, as an operator's work is

Side = Callable[[], Any]


def bench_case(subject: Subject, name: str) -> Case:
    """The case of one line of [bench]. Raises LookupError where the sizes break a condition."""
    stated = subject.metadata["bench"][name]
    groups = {group: tuple(sizes) for group, sizes in stated["groups"].items()}
    choice = _choice(subject, stated["dtype"])
    drawer = Drawer(subject.metadata, choice.names if choice else None)
    point = drawer.solve(stated["sizes"], groups, stated["attributes"])
    if point is None or choice is None:
        why = "the conditions do not allow these sizes" if choice else "no such dtype here"
        raise LookupError(f"{subject.name}: [bench] {name} = '{stated['text']}': {why}")
    return Case(name, "bench", choice, point)


def _choice(subject: Subject, dtype: str | None) -> DtypeChoice | None:
    """The first combination with that dtype, with as many tensors of it as can be."""
    every = choices_here(subject.metadata)
    if dtype is None:
        return every[0] if every else None
    fitting = [choice for choice in every if dtype in choice.names.values()]
    return max(fitting, key=lambda c: list(c.names.values()).count(dtype), default=None)


def check(subject: Subject, case: Case, backend: str) -> str:
    """Compares with the reference before anything is timed; CheckError. Returns what was compared."""
    if backend != "cpu":
        subject = through_torch(subject, backend)
    if not has_reference(subject):
        return "no reference"
    elements = sum(
        placed.array.size for list_ in build(subject, case).placed.values() for placed in list_
    )
    if max(elements, flops_of(subject, case) or 0) <= _MOST_CHECKED:
        check_values(subject, case)
        return "checked"
    check_values(subject, Good(subject, case.choice).case)
    return "checked at a smaller size"


def flops_of(subject: Subject, case: Case) -> int | None:
    """What the schema says under `flops`, at these sizes."""
    stated = subject.metadata["flops"]
    return evaluate(stated["expression"], case.point.sizes) if stated else None


def time_case(subject: Subject, case: Case, backend: str, rounds: int) -> dict[str, Any]:
    """Nanoseconds of one call, of the operator and of the copy, least and median."""
    built = build(subject, case)
    results = {name: placed.array for name, placed in place_outputs(subject, case).items()}
    moved = _bytes(built, results)
    if backend == "cpu":
        call = _call(subject, {**built.arguments, **results})
        times = _take_turns({"call": call, "copy": _copy(moved)}, rounds, _time_calls)
    else:
        caller = TorchCudaCaller()
        call = _call(subject, caller.arguments({**built.arguments, **results}))
        sides = {"call": call, "copy": _cuda_copy(caller.framework, moved)}
        times = _take_turns(sides, rounds, _CudaClock(caller.framework))
    least, median = min(times["call"]), statistics.median(times["call"])
    return {
        "bytes": moved,
        "flops": flops_of(subject, case),
        "min_ns": round(least),
        "median_ns": round(median),
        "bytes_per_s": round(moved / least * 1e9),
        "copy_min_ns": round(min(times["copy"])),
        "share_of_copy": round(min(times["copy"]) / least, 3),
    }


def _call(subject: Subject, arguments: dict[str, Any]) -> Side:
    function = subject.function
    return lambda: function(**arguments)


def _bytes(built: Built, results: dict[str, np.ndarray]) -> int:
    """Read and written; what is changed in place is both."""
    total = sum(array.nbytes for array in results.values())
    for name, elements in built.placed.items():
        total += sum(p.array.nbytes for p in elements) * (2 if name in built.mutated else 1)
    return total


def _copy(moved: int) -> Side:
    """A copy that reads and writes as many bytes, by as many threads as operators have."""
    source, target = np.ones(moved // 2 + 1, np.uint8), np.ones(moved // 2 + 1, np.uint8)
    threads = anyop.get_num_threads()
    if threads == 1 or moved < _SHARED_BYTES:
        return lambda: np.copyto(target, source)
    pool = ThreadPoolExecutor(threads)
    pairs = list(zip(np.array_split(target, threads), np.array_split(source, threads)))
    return lambda: list(pool.map(lambda pair: np.copyto(*pair), pairs))


def _cuda_copy(torch: Any, moved: int) -> Side:
    source, target = (torch.ones(moved // 2 + 1, dtype=torch.uint8, device="cuda") for _ in "st")
    return lambda: target.copy_(source)


def _time_calls(side: Side, calls: int) -> float:
    """Nanoseconds of one call."""
    begin = time.perf_counter_ns()
    for _ in range(calls):
        side()
    return (time.perf_counter_ns() - begin) / calls


class _CudaClock:
    """The same by events on the stream: the device's time, waits for launches included."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in "be")

    def __call__(self, side: Side, calls: int) -> float:
        self.begin.record()
        for _ in range(calls):
            side()
        self.end.record()
        self.torch.cuda.synchronize()
        return self.begin.elapsed_time(self.end) * 1e6 / calls


def _take_turns(
    sides: dict[str, Side], rounds: int, clock: Callable[[Side, int], float]
) -> dict[str, list[float]]:
    """Times of each side and round; which goes first alternates."""
    calls = {}
    for name, side in sides.items():
        side()  # warms up
        calls[name] = max(1, round(_ROUND_NS / max(clock(side, 1), 1)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in order:
                times[name].append(clock(sides[name], calls[name]))
            order.reverse()
    finally:
        gc.enable()
    return times
