# SPDX-License-Identifier: Apache-2.0
"""Cases of an operator, all of them tried before one is reported."""

from __future__ import annotations

from collections.abc import Iterable

from anyop import testing
from anyop.cases.good_cases import Case
from anyop.cases.subject import Subject
from anyop.testing.torch_memory import takes_less


def failures_of(
    subject: Subject, cases: Iterable[Case], device: str = "", asked: str = ""
) -> list[str]:
    """What each failed case says; with a device, but for calls that its kernels do not take (takes_less)."""
    found = []
    for case in cases:
        try:
            testing.check_case(subject, case)
        except testing.CheckError as error:
            if not device or not takes_less(error, device, asked):
                found.append(str(error))
    return found


def show(failures: list[str], tried: int) -> None:
    assert not failures, f"{len(failures)} of {tried}:\n" + "\n".join(failures[:8])
