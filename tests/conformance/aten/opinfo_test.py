# SPDX-License-Identifier: Apache-2.0
"""torch's OpInfo samples through anyop.aten from NumPy arrays.

The first of each operator, of dtypes that the commit draws; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="expecttest, which torch.testing needs, is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")

import anyop.aten  # noqa: E402
import numpy as np  # noqa: E402
import opinfo_replay  # noqa: E402
from drawn import FULL, drawn  # noqa: E402

DTYPES = drawn(opinfo_replay.DTYPES, 3, "opinfo")
WHAT = ("leaves", "samples", "operators")


@cache
def rows() -> dict[str, dict]:
    """By dtype, from a process of its own: torch's samples look at all frames of the stack, pytest's are many."""
    limit = [] if FULL else ["--samples", "1"]
    command = [
        sys.executable,
        opinfo_replay.__file__,
        "--json",
        "--dtype",
        ",".join(DTYPES),
        *limit,
    ]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr[-3000:]
    lines = [line[4:] for line in process.stdout.splitlines() if line.startswith("row ")]
    return {row["dtype"]: row for row in map(json.loads, lines)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples(dtype, report):
    found, share = rows()[dtype], {}
    counts = [f"{n['passed']:,} of {n['tried']:,} {what}" for what in WHAT for n in [found[what]]]
    left = ", ".join(f"{n} {why}" for why, n in found["not_tried"].items())
    report.append(f"OpInfo {dtype}: {', '.join(counts)} right; not tried: {left or 'none'}")
    for what, least in {"leaves": 400, "samples": 300, "operators": 300}.items():
        assert found[what]["tried"] >= least
        share[what] = found[what]["passed"] / found[what]["tried"]
    assert share["leaves"] >= 0.999, found["fails"]
    assert share["samples"] >= 0.997 and share["operators"] >= 0.997, found["fails"]


def wrong_call(change: str, name: str, *args, **kwargs):
    if change == "a refusal":
        raise TypeError("no")
    found = anyop.aten.call(name, *args, **kwargs)
    if name.startswith("mul") and isinstance(found, np.ndarray) and found.size:
        found = found.copy()
        found.reshape(-1).view(np.uint8)[2 if change == "a bit" else 3] ^= 64
    return found


@pytest.mark.parametrize("change", ["a bit", "an exponent", "a refusal"])
def test_a_wrong_call_is_seen(change):
    """What judges the calls is judged itself."""
    x, y, count = torch.randn(3), torch.randn(3), opinfo_replay.Count()
    call = partial(wrong_call, change)
    opinfo_replay.run_sample(lambda: torch.mul(x, y).neg(), anyop.aten.call, count)
    assert count.leaves == {"tried": 2, "passed": 2}
    assert not opinfo_replay.run_sample(lambda: torch.mul(x, y).neg(), call, count)
    assert count.leaves["passed"] < count.leaves["tried"] and count.failures
