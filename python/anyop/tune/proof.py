# SPDX-License-Identifier: Apache-2.0
"""Runs kinds of calls one after the other, as a program does, by several routes in turns.

An implementation that is fast by itself may not be so among others: caches are cold, and the threads of another library
still spin. So the routes as a whole are timed, and the best of all sides is what is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyop
from anyop.cases.dtype_choices import numpy_dtype
from anyop.tune.arguments import Draw
from anyop.tune.choice import TIE, Measured, Rule, cost_of
from anyop.tune.clock import CpuClock, CudaClock, Side, take_turns
from anyop.tune.workload import Spec

_PASSES = 4  # the most frequent kinds are called so often, others in proportion, at least once
_MOST_BYTES = 1 << 30  # of all arguments together
_SECONDS = 3.0
_BETTER = 1 / TIE  # another side must be faster than the tuned routes by so much to replace them


@contextmanager
def loaded(path: str | None):
    """Within the block these routes hold, then none."""
    anyop.load_routes(path)
    try:
        yield
    finally:
        anyop.load_routes(None)


def call_of(draw: Draw) -> Callable[[], Any]:
    """Results have memory of their own: what is written over itself again and again grows or vanishes."""
    inputs = draw.inputs()
    arguments = {**inputs, **draw.places(inputs, inplace=False)}
    function = draw.subject.function
    return lambda: function(**arguments)


def clock_of(draw: Draw) -> CpuClock | CudaClock:
    """The device's."""
    caller = draw.memory.caller
    return CudaClock(caller.framework) if caller else CpuClock()


def time_sequence(found: list[Measured], files: dict[str, str | None]) -> dict[str, float]:
    """Nanoseconds of one run through the calls of one device, by route file."""
    draws, taken = [], 0
    for m in found:
        taken += _bytes(m)
        if not draws or taken <= _MOST_BYTES:
            draws.append((m, Draw(m.kind)))
    most = max(m.kind.count for m, _ in draws)
    calls = [(call_of(draw), round(_PASSES * m.kind.count / most)) for m, draw in draws]
    order = [call for at in range(_PASSES) for call, count in calls if at < max(count, 1)]

    def run() -> None:
        for call in order:
            call()

    sides = {name: Side(run, partial(loaded, path)) for name, path in files.items()}
    take_turns(sides, clock_of(draws[0][1]), _SECONDS, drop=False)
    return {name: side.median for name, side in sides.items()}


def _bytes(m: Measured) -> int:
    specs = [*m.kind.inputs.values(), *m.kind.results.values()]
    return sum(
        math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
        for spec in specs
        if isinstance(spec, Spec)
    )


def better_rules(
    times: dict[str, float], found: list[Measured], rules: list[Rule]
) -> tuple[str, list[Rule] | None]:
    """The side that is to be taken in place of the tuned routes, and its rule for one operator; "" for none.

    found: the kinds of that operator; rules: what was chosen for them. One that they are slower with, by what was
    measured of each alone, is not taken: the sequence as a whole says nothing of single operators.
    """
    best = min(times, key=lambda name: times[name])
    if best == "tuned" or times[best] > _BETTER * times["tuned"]:
        return "", None
    if best == "default":
        return best, []
    name = next(c.name for c in found[0].candidates if c.right and c.backend == best)
    made = [] if all(m.default == name for m in found) else [Rule((), name)]
    slower = bool(made) and cost_of(made, found) > TIE * cost_of(rules, found)
    return ("", None) if slower else (best, made)
