# SPDX-License-Identifier: Apache-2.0
"""The standard tests of operators, written from their schemas: for anyop's own and for any other folder of operators.

    from anyop import testing
    for subject in testing.find_subjects("my_ops"):
        for choice in testing.dtype_choices(subject.metadata):
            for case in testing.standard_cases(subject, choice):
                testing.check_case(subject, case)
        good = testing.Good(subject)
        for refusal in testing.refusals(good):
            testing.check_refusal(good, refusal)

Needs NumPy, ml_dtypes for the dtypes that NumPy lacks, and torch for what concerns torch's tensors.
"""

from anyop.cases.dtype_choices import DtypeChoice, dtype_choices
from anyop.cases.good_cases import CASE_CLASSES, Case, good_cases, standard_cases
from anyop.cases.subject import Subject, find_subjects
from anyop.cases.values import build
from anyop.testing.check import CheckError, check_case
from anyop.testing.observed import Kernel, kernel_calls, observe
from anyop.testing.refusals import Good, Refusal, check_refusal, refusals

__all__ = [
    "CASE_CLASSES",
    "Case",
    "CheckError",
    "DtypeChoice",
    "Good",
    "Kernel",
    "Refusal",
    "Subject",
    "build",
    "check_case",
    "check_refusal",
    "dtype_choices",
    "find_subjects",
    "good_cases",
    "kernel_calls",
    "observe",
    "refusals",
    "standard_cases",
]


def __getattr__(name: str) -> object:
    from anyop._operators import no_attribute

    raise no_attribute(__name__, name, __all__)


def __dir__() -> list[str]:
    """What users call, without the modules behind it."""
    return sorted({*__all__, *(name for name in globals() if name[:2] == "__")})
