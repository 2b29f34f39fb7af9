# SPDX-License-Identifier: Apache-2.0
"""The standard tests on a folder of operators from outside: they hold for every part of a schema, lists included."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from third_party_library import FOLDER, odd_library

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")

# A process of its own: a library that is loaded stays.
PROGRAM = """
import json, sys
from collections import Counter
import anyop
from anyop import testing
from anyop.testing.check import Checked
from anyop.testing.refusals import classes
names = anyop.load(sys.argv[1])
counts, failures = {}, []
for subject in testing.find_subjects(sys.argv[2]):
    kinds, bad, checked = Counter(), Counter(), Checked()
    choices = testing.dtype_choices(subject.metadata)
    for choice in choices:
        for case in testing.standard_cases(subject, choice):
            kinds[case.what] += 1
            try:
                checked.add(testing.check_case(subject, case))
            except testing.CheckError as error:
                failures.append(str(error))
    good = testing.Good(subject)
    for refusal in testing.refusals(good):
        bad[refusal.kind] += 1
        try:
            testing.check_refusal(good, refusal)
        except testing.CheckError as error:
            failures.append(str(error))
    empty = [c.kind for c in classes() if c.applies(subject) and not bad[c.kind]]
    counts[subject.name] = {"cases": kinds, "refusals": bad, "empty": empty, "dtypes": len(choices)}
    counts[subject.name] |= vars(checked)
print(json.dumps({"names": names, "counts": counts, "failures": failures}))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    command = ["-c", PROGRAM, str(odd_library(tmp_path_factory)), str(FOLDER / "odd")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


OPERATORS = (
    "affine", "count_into", "gain", "gain_backward", "scale_all", "stats", "sum_parts", "windows"
)  # fmt: skip


def test_all_are_found(report):
    assert report["names"] == [f"odd.{name}" for name in OPERATORS]
    assert sorted(report["counts"]) == report["names"]


def test_all_pass(report, tally):
    for name, counts in report["counts"].items():
        tally[name] |= {
            "cases": sum(counts["cases"].values()), "values": counts["values"], "calls": counts["calls"],
            "guard bytes": counts["guard_bytes"], "dtypes": counts["dtypes"],
            "refusals": sum(counts["refusals"].values()),
        }  # fmt: skip
    assert not report["failures"], "\n".join(report["failures"][:10])


def test_every_class_that_applies_is_there(report):
    for name, counts in report["counts"].items():
        assert counts["empty"] == [], name
        assert sum(counts["refusals"].values()) >= 60 and sum(counts["cases"].values()) >= 40
        assert counts["values"] > 500
    seen = {kind for counts in report["counts"].values() for kind in counts["refusals"]}
    assert seen >= {
        "tensor for a list",
        "count of a list",
        "element of a list",
        "lists of two lengths",
        "unknown dtype",
    }
    cases = {kind for counts in report["counts"].values() for kind in counts["cases"]}
    assert cases >= {"list", "absent", "attribute", "view", "empty", "special"}
