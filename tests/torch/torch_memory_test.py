# SPDX-License-Identifier: Apache-2.0
"""What tests other devices is tested on the CPU: right operators pass, stray writes are seen through the copies.

And all operators on torch's tensors without elements.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyop
import pytest
from anyop import testing
from anyop.cases.values import shapes_of
from anyop.testing.torch_memory import fits_torch, on_device, through_torch
from failures import failures_of, show

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")

OPS = Path(__file__).parents[2] / "ops"
FAMILIES = sorted(folder.name for folder in OPS.iterdir() if any(folder.glob("*.toml")))
SUBJECTS = {subject.name: subject for subject in testing.find_subjects(OPS / "elementwise")}


@pytest.mark.parametrize("name", ["add", "silu", "add_backward"])
def test_right_operators_pass(name):
    subject, cases, values, guards = SUBJECTS[name], 0, 0, 0
    there = through_torch(subject, "cpu")
    choice = testing.dtype_choices(subject.metadata)[0]
    for case in filter(fits_torch, testing.standard_cases(subject, choice)):
        checked = testing.check_case(there, case)
        cases, values, guards = cases + 1, values + checked.values, guards + checked.guard_bytes
    assert cases > 40 and values > 10_000 and guards > 10_000


def empty_cases(subject: testing.Subject, choice: testing.DtypeChoice) -> dict[tuple, testing.Case]:
    """The first one of each set of tensors without elements."""
    found: dict[tuple, testing.Case] = {}
    for case in filter(fits_torch, testing.standard_cases(subject, choice)):
        named = tuple(
            p["name"]
            for p in subject.tensors
            if p["name"] not in case.absent and any(0 in shape for shape in shapes_of(p, case))
        )
        if named:
            found.setdefault(named, case)
    return found


def choices_of(subject: testing.Subject) -> list[testing.DtypeChoice]:
    """One for each dtype of the first tensor."""
    first, found = subject.tensors[0]["name"], {}
    for choice in testing.dtype_choices(subject.metadata):
        found.setdefault(choice.names[first], choice)
    return list(found.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_without_elements(family):
    """torch's have no address: no kernel takes that for memory that it did not get."""
    failures, tried = [], 0
    for subject in testing.find_subjects(OPS / family):
        there = through_torch(subject, "cpu")
        for choice in choices_of(subject):
            cases = empty_cases(subject, choice).values()
            failures += failures_of(there, cases, "cpu")
            tried += len(cases)
    show(failures, tried)
    assert tried >= 5


def test_the_kernel_gets_tensors_of_torch():
    seen = []

    def spy(x, **named):
        seen.append((type(x), tuple(x.shape)))
        return anyop.silu(x, **named)

    testing.check_case(
        replace(SUBJECTS["silu"], function=on_device(spy, "cpu")),
        testing.Good(SUBJECTS["silu"]).case,
    )
    assert len(seen) > 2 and {kind for kind, _ in seen} == {torch.Tensor}


def spills(x, out=None):
    """Writes one element behind the result that it is given."""
    found = anyop.silu(x, out=out)
    if out is not None:
        bytes_there = torch.empty(0, dtype=torch.uint8).set_(out.untyped_storage())
        bytes_there[(out.storage_offset() + out.numel()) * out.element_size()] ^= 1
    return found


def changes(x, out=None):
    """Changes its argument."""
    found = anyop.silu(x, out=out)
    x += 1
    return found


@pytest.mark.parametrize(
    ("function", "says"),
    [(spills, "bytes outside of out were written"), (changes, "x was changed")],
)
def test_stray_writes_are_seen(function, says):
    subject = replace(SUBJECTS["silu"], function=on_device(function, "cpu"))
    with pytest.raises(testing.CheckError, match=says):
        testing.check_case(subject, testing.Good(subject).case)
