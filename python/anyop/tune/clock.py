# SPDX-License-Identifier: Apache-2.0
"""Times several sides in turns, so that all see the same machine, and no longer than it takes to tell them apart."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_TURN_NS = 2_000_000  # one side calls at least this long before the other's turn
_LEAST, _MOST = 5, 25  # rounds
_HOPELESS = 1.5  # times the best: after three rounds such a side has had its turns
_PAUSE_S = 0.001  # lets another library's waiting threads go to sleep

Enter = Callable[[], AbstractContextManager]


class Side:
    """A call, what to be in while it is made, and what it took: nanoseconds of one call, by round."""

    def __init__(self, call: Callable[[], Any], enter: Enter = nullcontext) -> None:
        self.call, self.enter = call, enter
        self.calls = 1
        self.times: list[float] = []

    @property
    def least(self) -> float:
        """Of all rounds."""
        return min(self.times)

    @property
    def median(self) -> float:
        """Of all rounds."""
        return statistics.median(self.times)


class CpuClock:
    """By the machine's clock."""

    pause_s = _PAUSE_S

    def __call__(self, side: Side) -> float:
        call, repeat = side.call, range(side.calls)
        begin = time.perf_counter_ns()
        for _ in repeat:
            call()
        return (time.perf_counter_ns() - begin) / side.calls


class CudaClock:
    """By events on torch's current stream: the device's time, waits for launches included."""

    pause_s = 0.0

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def __call__(self, side: Side) -> float:
        self.begin.record()
        for _ in range(side.calls):
            side.call()
        self.end.record()
        self.torch.cuda.synchronize()
        return self.begin.elapsed_time(self.end) * 1e6 / side.calls


def take_turns(
    sides: dict[str, Side], clock: Callable[[Side], float], seconds: float, drop: bool = True
) -> None:
    """Fills the sides' times: some rounds, more while `seconds` last. Who goes first alternates."""
    for side in sides.values():
        with side.enter():
            side.call()  # warms up
            side.calls = max(1, round(_TURN_NS / max(clock(side), 1)))
    end = time.monotonic() + seconds
    order = list(sides.values())
    if not order:
        return
    gc.collect()
    gc.disable()
    try:
        for done in range(_MOST):
            if done >= _LEAST and (time.monotonic() > end or len(order) < 2):
                return
            for side in order:
                _turn(side, clock, len(sides) > 1)
            order.reverse()
            if drop and done == 2:
                best = min(side.median for side in order)
                order = [side for side in order if side.least <= _HOPELESS * best]
    finally:
        gc.enable()


def _turn(side: Side, clock: Any, pause: bool) -> None:
    if pause:
        time.sleep(clock.pause_s)
    with side.enter():
        side.call()  # its code and data are warm again
        side.times.append(clock(side))
