# SPDX-License-Identifier: Apache-2.0
"""The standard tests of all operators that Ascend's libopapi has, on torch's device over the row ascend.

ANYOP_DEVICE_PLATFORM=ascend pytest tests/runtimes/operators.py. runtimes_aclnn_test.py runs it on a false ACL, a
part that the commit draws, all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

import itertools
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
    if any(kernel["device"] == "ascend" for kernel in subject.metadata["kernels"])
}
FLOATS = {"float32", "float16", "bfloat16"}
DRAWN = 24  # cases of an operator, of
KINDS = 8  # combinations of dtypes
LEAST = 8  # cases that its kernel takes; where fewer are drawn, more are tried


def test_the_platform_is_ascend():
    assert anyop.torch.device.platform() == "ascend"


def test_as_many_as_were_promised():
    assert len(SUBJECTS) >= 16


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_standard_cases(subject):
    there = through_torch(subject, "anyop")
    choices = testing.dtype_choices(subject.metadata)
    taken = [c for c in choices if {d for d in c.names.values() if d and "float" in d} <= FLOATS]
    cases = of_dtypes(subject, few(taken, KINDS, subject.name))
    cases = few(cases, DRAWN, subject.name)
    failures, ran = [], 0
    for at, case in enumerate(itertools.chain(cases, of_dtypes(subject, taken))):
        if at >= len(cases) and ran >= LEAST:
            break  # what was drawn suffices
        try:
            testing.check_case(there, case)
            ran += 1
        except testing.CheckError as error:
            if not takes_less(error, "ascend", "anyop"):
                failures.append(str(error))
    assert not failures, f"{len(failures)} failures, drawn by {seed()}:\n" + "\n".join(failures[:8])
    assert ran >= LEAST


def of_dtypes(subject, choices: list) -> list:
    cases = [c for choice in choices for c in testing.standard_cases(subject, choice)]
    return [c for c in cases if fits_device(subject, c)]
