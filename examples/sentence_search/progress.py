# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error: redrawn on a terminal, a line for every tenth elsewhere."""

from __future__ import annotations

import sys
from time import perf_counter

WIDTH = 30
REDRAW_S = 0.1


class Progress:
    def __init__(self, label: str, total: int):
        self._label = label
        self._total = total
        self._begin = perf_counter()
        self._redraw_at = 0.0
        self._tenths = 0
        self._terminal = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        now = perf_counter()
        if self._terminal:
            if now >= self._redraw_at or done == self._total:
                self._redraw_at = now + REDRAW_S
                end = "\n" if done == self._total else ""
                print(f"\r{self._line(done, now)}", end=end, file=sys.stderr, flush=True)
        elif done * 10 // self._total > self._tenths:
            self._tenths = done * 10 // self._total
            print(self._line(done, now), file=sys.stderr, flush=True)

    def _line(self, done: int, now: float) -> str:
        filled = WIDTH * done // self._total
        speed = done / max(now - self._begin, 1e-9)
        bar = "#" * filled + "." * (WIDTH - filled)
        return f"{self._label} [{bar}] {done:,}/{self._total:,}, {speed:,.0f}/s"
