# SPDX-License-Identifier: Apache-2.0
"""What the tests have counted and reasons of skips, printed behind every run, whatever its options."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from outcomes import record_outcomes

_TALLY = pytest.StashKey[dict[str, Counter]]()
_REPORT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = defaultdict(Counter)
    config.stash[_REPORT] = []


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> dict[str, Counter]:
    """Counters by operator; "refusals by class" counts those of all operators together."""
    return request.config.stash[_TALLY]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> list[str]:
    """Lines of tests about what they have counted."""
    return request.config.stash[_REPORT]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In one of several processes (pytest-xdist): the counts go to the one that prints them."""
    if hasattr(session.config, "workeroutput"):
        tally = session.config.stash[_TALLY]
        session.config.workeroutput["tally"] = {name: dict(n) for name, n in tally.items()}
        session.config.workeroutput["report"] = session.config.stash[_REPORT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """A process is done: its counts are added."""
    for name, counts in getattr(node, "workeroutput", {}).get("tally", {}).items():
        node.config.stash[_TALLY][name].update(counts)
    node.config.stash[_REPORT] += getattr(node, "workeroutput", {}).get("report", [])


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    record = os.environ.get("ANYOP_TEST_RECORD")
    if record and "PYTEST_XDIST_WORKER" not in os.environ:
        record_outcomes(terminalreporter.stats, Path(record))
    reasons = Counter(
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    if lines := config.stash[_REPORT]:
        terminalreporter.section("what tests counted")
        for line in lines:
            terminalreporter.write_line(line)
    tally = config.stash[_TALLY]
    classes = tally.pop("refusals by class", Counter())
    if not tally and not classes:
        return
    columns = ("dtypes", "cases", "calls", "values", "guard bytes", "refusals")
    write = terminalreporter.write_line
    terminalreporter.section("standard tests of operators")
    write(f"{'operator':<20}" + "".join(f"{column:>14}" for column in columns))
    total: Counter = Counter()
    for name, counts in sorted(tally.items()):
        total.update(counts)
        write(f"{name:<20}" + "".join(f"{counts[column]:>14,}" for column in columns))
    write(f"{'all':<20}" + "".join(f"{total[column]:>14,}" for column in columns))
    write("refusals by class: " + ", ".join(f"{name} {n:,}" for name, n in classes.items()))
