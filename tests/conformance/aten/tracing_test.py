# SPDX-License-Identifier: Apache-2.0
"""Every overload is reached from NumPy values through the C entry, with no Python function of torch on the way."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import prepared
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anyop.aten import _table  # noqa: E402

PROGRAM = Path(__file__).parent / "tracing_calls.py"
REACHED = ("results", "torch's error", "no array can be the result")
SECONDS = 300


def run(names: list[str]) -> dict[str, str]:
    """What became of each; the last one may be what the process crashed in."""
    process = prepared.run("torch", [sys.executable, str(PROGRAM), *names], timeout=SECONDS)
    found: dict[str, str] = {}
    for line in process.stdout.splitlines():
        word, _, rest = line.partition(" ")
        name, _, text = rest.partition(": ")
        if word == "begin":
            found[name] = "torch.ops itself crashes"
        elif word == "torch":
            found[name] = f"crash: {process.returncode} {process.stderr[-500:]}"
        elif word == "done":
            found[name] = text
    assert found, process.stderr[-3000:]
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    every = _table.metadata()["overloads"]
    left, found = [name for name, one in every.items() if one["callable"]], {}
    while left:
        found |= run(left)
        left = [name for name in left if name not in found]
    return found


def test_no_python_of_torch_runs(outcomes):
    seen = {name: text for name, text in outcomes.items() if text.startswith("torch's Python")}
    assert not seen


def test_overloads_are_reached(outcomes, report):
    said = Counter(
        text if text in REACHED else text.partition(":")[0] for text in outcomes.values()
    )
    counts = ", ".join(f"{n:,} {text}" for text, n in said.most_common())
    report.append(f"{len(outcomes):,} callable overloads without Python of torch: {counts}")
    rest = {name: text for name, text in outcomes.items() if text not in REACHED}
    assert not [text for text in rest.values() if text.startswith("crash")], rest
    # 3,080 of torch 2.13's 3,110; other versions have other counts.
    assert len(outcomes) - len(rest) >= 0.99 * len(_table.metadata()["overloads"]), rest
    if torch.__version__.startswith("2.13"):
        assert len(outcomes) - len(rest) >= 3080, rest
