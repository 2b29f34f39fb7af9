# SPDX-License-Identifier: Apache-2.0
"""All standard tests of one operator from one framework, as a row of counts and a list of failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyop.cases.callers import Caller
from anyop.cases.dtype_choices import choices_here
from anyop.cases.good_cases import standard_cases
from anyop.cases.subject import Subject
from anyop.testing.check import Checked, CheckError, check_case, check_values
from anyop.testing.gradients import Differentiated, check_framework, check_slopes
from anyop.testing.refusals import Good, check_refusal, refusals
from anyop.testing.through import check_bits, few_cases, few_choices, through, unable
from anyop.testing.torch_memory import fits_device, through_torch

At = Callable[[str], None]  # told what is tried next


@dataclass
class Row:
    """What was tried of one operator from one framework, and what was wrong."""

    operator: str
    backend: str
    framework: str
    dtypes: int = 0
    cases: int = 0
    values: int = 0  # compared with the reference
    guard_bytes: int = 0
    refusals: int = 0
    gradients: int = 0
    skipped: str = ""  # why nothing was tried
    failures: list[str] = field(default_factory=list)

    def add(self, checked: Checked) -> None:
        """Counts one case."""
        self.cases += 1
        self.values += checked.values
        self.guard_bytes += checked.guard_bytes

    def attempt(self, check: Callable[[], Any]) -> Any:
        """What the check returns; None with its error noted."""
        try:
            return check()
        except CheckError as error:
            self.failures.append(str(error))
        except Exception as error:  # an operator or a framework may raise anything
            self.failures.append(f"{self.operator}: {type(error).__name__}: {error}")
        return None


def has_reference(subject: Subject) -> bool:
    """Whether <op>_test.py beside the operator has a function `reference`. What that file raises passes."""
    try:
        return callable(subject.reference)
    except LookupError:
        return False


def try_arrays(subject: Subject, backward: Subject | None, at: At, with_torch: bool) -> Row:
    """From NumPy on the CPU: values, guards, views, in place, refusals (with_torch: of torch's tensors too), slopes."""
    import numpy as np

    row = Row(subject.name, "cpu", f"numpy {np.__version__}")
    compare = has_reference(subject)
    for choice in choices_here(subject.metadata):
        row.dtypes += 1
        for case in standard_cases(subject, choice):
            at(f"{subject.name} [{choice}] {case.label}")
            checked = row.attempt(partial(check_case, subject, case, compare))
            if checked:
                row.add(checked)
    if not row.dtypes:
        return row
    row.attempt(lambda: _refuse(subject, row, at, with_torch))
    if backward and compare:
        at(f"{subject.name}: slopes of the reference")
        row.gradients = row.attempt(lambda: check_slopes(Differentiated(subject, backward))) or 0
    return row


def _refuse(subject: Subject, row: Row, at: At, with_torch: bool) -> None:
    good = Good(subject, choices_here(subject.metadata)[0])
    for refusal in refusals(good, with_torch):
        at(f"{subject.name}: {refusal.kind}: {refusal.label}")
        row.attempt(partial(check_refusal, good, refusal))
        row.refusals += 1


def try_framework(subject: Subject, backward: Subject | None, caller: Caller, at: At) -> Row:
    """From another framework: values of some cases of every class, gradients by its own differentiation."""
    row = Row(subject.name, caller.backend, f"{caller.name} {caller.version}")
    row.skipped = unable(subject, caller) or ""
    if row.skipped:
        return row
    turned = through(subject, caller)
    check = partial(check_values, turned)
    if not has_reference(subject):
        check = partial(check_bits, subject, turned)
    with caller.scope():
        for choice in few_choices(subject.metadata, caller):
            row.dtypes += 1
            for case in few_cases(subject, choice):
                at(f"{subject.name} from {caller.name} [{choice}] {case.label}")
                checked = row.attempt(partial(check, case))
                if checked:
                    row.add(checked)
        if backward and caller.has_gradients:
            at(f"{subject.name} from {caller.name}: gradients")
            row.gradients = (
                row.attempt(lambda: _framework_gradients(subject, backward, caller)) or 0
            )
    return row


def try_device(subject: Subject, backward: Subject | None, caller: Caller, at: At) -> Row:
    """From torch on another device: all good cases with their guards, gradients by torch's differentiation."""
    row = Row(subject.name, caller.backend, f"{caller.name} {caller.version}")
    row.skipped = unable(subject, caller) or ""
    if row.skipped:
        return row
    there, compare = through_torch(subject, caller.backend), has_reference(subject)
    for choice in choices_here(subject.metadata):
        if not all(caller.has_dtype(name) for name in choice.names.values() if name):
            continue
        row.dtypes += 1
        for case in filter(partial(fits_device, subject), standard_cases(there, choice)):
            at(f"{subject.name} on {caller.backend} [{choice}] {case.label}")
            checked = row.attempt(partial(check_case, there, case, compare))
            if checked:
                row.add(checked)
    if backward and _runs_on_cpu(subject, backward) and not unable(backward, caller):
        at(f"{subject.name} on {caller.backend}: gradients")
        row.gradients = row.attempt(lambda: _framework_gradients(subject, backward, caller)) or 0
    return row


def _runs_on_cpu(*subjects: Subject) -> bool:
    """Gradients are compared with those of NumPy's call."""
    kernels = [{kernel["backend"] for kernel in s.metadata["kernels"]} for s in subjects]
    return all("cpu" in backends for backends in kernels)


def _framework_gradients(subject: Subject, backward: Subject, caller: Caller) -> int:
    return check_framework(Differentiated(subject, backward), caller)
