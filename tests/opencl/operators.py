# SPDX-License-Identifier: Apache-2.0
"""The standard tests of all operators with a kernel in OpenCL C, on torch's device over the plugin opencl.

ANYOP_DEVICE_PLATFORM=opencl pytest tests/opencl/operators.py. opencl_test.py runs it on PoCL, a part that the
commit draws, all with ANYOP_TEST_FULL=1. ANYOP_OPENCL_DEVICE names another platform.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import anyop.torch.device
import pytest
from anyop import testing
from anyop.testing.torch_memory import fits_device, takes_less, through_torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "shared"))
from drawn import few, seed  # noqa: E402

SUBJECTS = {
    subject.name: subject
    for subject in testing.find_subjects(ROOT / "ops")
    if any(kernel["device"] == "opencl" for kernel in subject.metadata["kernels"])
}
FLOATS = {"float32", "float16", "bfloat16", "float64", None}
DRAWN = 24  # cases of an operator, of
KINDS = 5  # combinations of dtypes: each is a program of its own
SMALL = os.environ.get("ANYOP_TEST_SMALL")  # "1": few cases, for a simulator
MOST = 20_000  # the product of all sizes of such a case


def smallest(cases: list) -> list:
    """One with all inputs, one with less of them, and the largest size, of those that are short for a simulator."""

    def work(case) -> int:
        sizes = case.point.sizes
        return math.prod(
            filter(None, map(abs, [*sizes.values.values(), *sum(sizes.groups.values(), ())]))
        )

    short = sorted((case for case in cases if work(case) <= MOST), key=work)
    found = {case.what: case for case in short if case.what in ("base", "absent", "size", "view")}
    return list(found.values())


def test_the_platform_is_opencl():
    assert anyop.torch.device.platform() == "opencl"


def test_a_number_is_read_from_the_device():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert torch.tensor([1.5, 2.5]).to("anyop")[1].item() == 2.5


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_standard_cases(subject):
    there = through_torch(subject, "anyop")
    when = [k["when"] or "" for k in subject.metadata["kernels"] if k["device"] == "opencl"]
    choices = testing.dtype_choices(subject.metadata)
    if all("dtype=" in kernel for kernel in when):
        choices = [c for c in choices if set(c.names.values()) <= FLOATS]
    choices = choices[:1] if SMALL else few(choices, KINDS, subject.name)
    cases = [c for choice in choices for c in testing.standard_cases(subject, choice)]
    cases = [c for c in cases if fits_device(subject, c)]
    cases = smallest(cases) if SMALL else few(cases, DRAWN, subject.name)
    failures, ran = [], 0
    for case in cases:
        try:
            testing.check_case(there, case)
            ran += 1
        except testing.CheckError as error:
            if takes_less(error, "opencl", "anyop"):
                continue
            failures.append(str(error))
    assert not failures, f"{len(failures)} failures, drawn by {seed()}:\n" + "\n".join(failures[:8])
    assert ran >= (1 if SMALL else 8)
