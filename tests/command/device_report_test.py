# SPDX-License-Identifier: Apache-2.0
"""`anyop device-check --operators --report`: operators on PoCL from NumPy, false runtimes, bad input."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "runtimes"))
import false_runtimes  # noqa: E402

POCL = pytest.mark.skipif(
    not Path("/etc/OpenCL/vendors/pocl.icd").exists(),
    reason="PoCL is not installed (Debian: pocl-opencl-icd)",
)
CHECK = ("-m", "anyop", "device-check")


@pytest.fixture
def pocl(tmp_path) -> dict[str, str]:
    own = {"ANYOP_CACHE_DIR": str(tmp_path / "cache"), "POCL_CACHE_DIR": str(tmp_path / "pocl")}
    return own | {"ANYOP_OPENCL_DEVICE": "Portable Computing Language"}


@POCL
def test_operators_on_pocl(pocl, tmp_path):
    file = tmp_path / "report.json"
    words = ("opencl", "--only", "copies", "--operators", "-k", "relu", "--report", file)
    code, text = false_runtimes.run(pocl, *CHECK, *map(str, words))
    assert code == 0 and "2 of 2 checks passed, 1 of them operators" in text, text
    report = json.loads(file.read_text())
    assert report["evidence"] == "vendor's library, no chip" and report["passed"]
    relu = report["operators"]["relu"]
    assert int(relu["text"].split()[0]) > 100 and len(relu["sources"]) == 16
    assert report["device"]["name"] == "opencl" and len(report["sources"]) == 16


WRONG = """
import sys
from dataclasses import replace
import anyop
from anyop.conformance import on_chip
from anyop.testing import find_subjects
from anyop.conformance.device_table import Device
(subject,) = (s for s in find_subjects("ops") if s.name == "relu")
subject = replace(subject, function=anyop.silu)  # wrong on purpose
try:
    print(on_chip._try_operator(subject, 60, Device("opencl")))
except Exception as error:
    print(type(error).__name__, error)
"""


@POCL
def test_an_operator_that_is_wrong_is_named(pocl):
    code, text = false_runtimes.run(pocl, "-c", WRONG)
    assert code == 0 and text.startswith("Wrong ") and "relu [float32] base" in text, text
    assert "expected" in text, text


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_a_false_runtime_says_that_it_is_one(tmp_path):
    file = tmp_path / "report.json"
    made = false_runtimes.make("maca", tmp_path / "maca")
    words = ("maca", "--only", "copies", "--only", "filling", "--operators", "--report", str(file))
    code, text = false_runtimes.run(made.environment, *CHECK, *words)
    report = json.loads(file.read_text())
    assert code == 0 and report["evidence"] == "false runtime" and report["passed"], text
    assert sorted(report["checks"]) == ["copies", "filling"]
    broken = made.environment | {"ANYOP_FALSE": "kinds=1"}
    code, text = false_runtimes.run(broken, *CHECK, *words)
    report = json.loads(file.read_text())
    assert code == 1 and not report["passed"] and not report["checks"]["copies"]["good"], text


def test_a_folder_that_is_not_there():
    code, text = false_runtimes.run({}, *CHECK, "host", "--operators", "/nowhere/ops")
    assert code == 1 and "no folder of operators at /nowhere/ops" in text, text
