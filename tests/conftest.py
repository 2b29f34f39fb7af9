# SPDX-License-Identifier: Apache-2.0
"""What the tests have counted and reasons of skips, printed behind every run, whatever its options."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_TALLY = pytest.StashKey[dict[str, Counter]]()
_REPORT = pytest.StashKey[list[str]]()
GPUS = "nvidia-smi --query-gpu=name --format=csv,noheader"


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


def record_outcomes(stats: dict) -> None:
    """ANYOP_TEST_RECORD names a file: a line for each file of tests with its outcomes, versions and the device."""
    files: dict[str, Counter] = defaultdict(Counter)
    reasons: dict[str, Counter] = defaultdict(Counter)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in stats.get(outcome, []):
            file = report.nodeid.partition("::")[0]
            files[file][outcome] += 1
            if outcome == "skipped":
                reasons[file][report.longrepr[2].removeprefix("Skipped: ")] += 1
    said = {"commit": os.environ.get("ANYOP_TEST_COMMIT"), "gpu": None, "versions": {}}
    if gpus := subprocess.run(GPUS, shell=True, capture_output=True, text=True).stdout.split("\n"):
        said["gpu"] = gpus[0] or None
    for name in (
        "torch",
        "jax",
        "cupy-cuda12x",
        "cupy-cuda13x",
        "triton",
        "apache-tvm-ffi",
        "numpy",
    ):
        try:
            said["versions"][name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    with Path(os.environ["ANYOP_TEST_RECORD"]).open("a") as lines:
        tests = files.get("tests/cuda_operators.py", Counter())
        if tests["passed"] and not tests["failed"] and not tests["error"]:
            from codegen.gpu_record import all_hashes
            from codegen.operator_file import read_operator

            operators = [read_operator(path) for path in sorted((ROOT / "ops").glob("*/*.toml"))]
            lines.write(json.dumps({"sources": all_hashes(operators, ROOT), **said}) + "\n")
        for file, counts in sorted(files.items()):
            line = {"tests": file, **counts, "reasons": reasons[file], **said}
            lines.write(json.dumps(line) + "\n")


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if os.environ.get("ANYOP_TEST_RECORD") and "PYTEST_XDIST_WORKER" not in os.environ:
        record_outcomes(terminalreporter.stats)
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
