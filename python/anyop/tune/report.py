# SPDX-License-Identifier: Apache-2.0
"""What `anyop tune` shows: a progress bar while it works, a table of speed-ups at the end."""

from __future__ import annotations

import math
import shutil
import sys
import time
from typing import Any

from anyop.tune.run import Tuned

_BAR = 24


class Progress:
    """A bar on standard error, on terminals only. Lines of text pass above it."""

    def __init__(self) -> None:
        self.stream = sys.stderr
        self.shown = self.stream.isatty()
        self.begin = time.monotonic()
        self.done, self.of = 0, 1

    def show(self, event: dict[str, Any]) -> None:
        """What is measured now; `done` and `of` where they changed."""
        if not self.shown:
            return
        self.done, self.of = event.get("done", self.of), event.get("of", self.of)
        filled = _BAR * self.done // max(self.of, 1)
        passed = time.monotonic() - self.begin
        left = passed / self.done * (self.of - self.done) if self.done else 0
        bar = f"[{'#' * filled}{'.' * (_BAR - filled)}] {self.done}/{self.of} "
        text = f"{bar}{f'{left:.0f} s left, ' * (left > 0)}{event['at']}"
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(f"\r\x1b[2K{text[:width]}")
        self.stream.flush()

    def clear(self) -> None:
        """Takes the bar away."""
        if self.shown:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()


def summary(tuned: Tuned, path: str) -> list[str]:
    """The table and the totals, as lines."""
    rows: list[tuple[str, ...]] = [
        ("operator", "on", "kinds", "calls", "default", "tuned", "speed-up", "runs on")
    ]
    for group in sorted(tuned.measured, key=lambda group: -tuned.by_group[group]["tuned"]):
        rows.append(_row(tuned, group))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(_cell(row[at], at, widths[at]) for at in range(len(row))).rstrip() for row in rows
    ]
    return [*lines, "", *_totals(tuned), f"written: {path}"]


def _cell(text: str, at: int, width: int) -> str:
    return text.rjust(width) if 2 <= at <= 6 else text.ljust(width)


def _row(tuned: Tuned, group: tuple[str, str]) -> tuple[str, ...]:
    found, times = tuned.measured[group], tuned.by_group[group]
    calls = sum(m.kind.count for m in found)
    names = [rule.name for rule in tuned.rules[group]]
    plain = any(not rule.terms for rule in tuned.rules[group])
    where = ([] if plain else ["default"]) + names
    shown = ", ".join(dict.fromkeys(where))
    return (
        *group,
        str(len(found)),
        f"{calls:,}",
        _ms(times["default"]),
        _ms(times["tuned"]),
        _ratio(times["default"], times["tuned"]),
        shown,
    )


def _ms(ns: float) -> str:
    return "wrong" if math.isnan(ns) else f"{ns / 1e6:,.3f} ms"


def _ratio(slow: float, fast: float) -> str:
    return "" if math.isnan(slow) else f"{slow / fast:.2f}x"


def _totals(tuned: Tuned) -> list[str]:
    totals = tuned.totals
    lines = [f"all kinds one after the other, in turns: tuned {_ms(totals['tuned'])}"]
    for side, total in totals.items():
        if side != "tuned" and not math.isnan(total):
            alone = "" if side == "default" else " alone"
            lines.append(f"  {side}{alone} {_ms(total)}: tuned is {_ratio(total, totals['tuned'])}")
    for backend, gap in tuned.missing.items():
        lines.append(f"  {backend} alone does not cover {gap}")
    return lines
