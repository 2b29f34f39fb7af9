# SPDX-License-Identifier: Apache-2.0
"""Every operator gives every framework the same bits: those that NumPy gets, in tensors of the caller's framework."""

from __future__ import annotations

from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing

# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s
    for s in testing.find_subjects(Path(__file__).parents[2] / "ops")
    if s.results and not s.metadata["mutated"]
}
CLASSES = ("base", "one element", "empty", "absent", "broadcast", "expand", "attribute", "special")
PER_CLASS = 2


@pytest.fixture(params=SUBJECTS)
def subject(request, caller):
    """An operator that has a kernel where the caller's tensors lie."""
    if caller.backend not in anyop.backends(request.param):
        pytest.skip(f"no {caller.backend} kernel of {request.param} for {caller.name}")
    return SUBJECTS[request.param]


def cases_of(subject, choice):
    seen = dict.fromkeys(CLASSES, 0)
    for case in testing.standard_cases(subject, choice):
        if seen.get(case.what, PER_CLASS) < PER_CLASS:
            seen[case.what] += 1
            yield case


def tuple_of(found):
    return found if isinstance(found, tuple) else (found,)


def same_bits(a, b) -> bool:
    """NaN equals NaN, whatever its bits."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def close(a, b, subject) -> bool:
    """A device's own kernel: as close as both may be from the reference."""
    name = np.asarray(b).dtype.name
    if name not in subject.metadata["tolerance"]:
        return same_bits(a, b)
    limit = 2 * subject.metadata["tolerance"][name]
    a, b = (np.asarray(v).astype(np.float64) for v in (a, b))
    return bool(np.allclose(a, b, rtol=limit, atol=limit * 4, equal_nan=True))


def test_results_are_those_of_numpy(caller, subject):
    compared, choices = 0, testing.dtype_choices(subject.metadata)
    for choice in [c for c in choices if c.is_uniform] or choices[:2]:
        for case in cases_of(subject, choice):
            given = testing.build(subject, case).arguments
            expected = tuple_of(subject.function(**given))
            found = tuple_of(subject.function(**caller.arguments(given)))
            assert len(found) == len(expected)
            for a, b in zip(found, expected):
                assert caller.is_tensor(a), (case.label, type(a))
                a = caller.array(a)
                alike = same_bits(a, b) if caller.backend == "cpu" else close(a, b, subject)
                assert alike, (case.label, str(choice), a, b)
                compared += 1
    assert compared >= 2


def test_arguments_are_not_changed(caller, subject):
    choice = testing.dtype_choices(subject.metadata)[0]
    case = testing.good_cases(subject, choice)[0]
    given = testing.build(subject, case).arguments
    tensors = caller.arguments(given)
    subject.function(**tensors)
    for name, value in given.items():
        if isinstance(value, np.ndarray):
            assert same_bits(caller.array(tensors[name]), value), name
