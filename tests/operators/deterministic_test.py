# SPDX-License-Identifier: Apache-2.0
"""Kernels that declare determinism give the same bits in every run; most of them with any number of threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyop
import numpy as np
import pytest
from anyop import testing
from anyop.cases.values import build

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops") if s.results
}
DECLARED = {
    name: subject
    for name, subject in SUBJECTS.items()
    if any(k["backend"] == "cpu" and k["deterministic"] for k in subject.metadata["kernels"])
}
# The products add up in another order on another number of threads.
BY_THREADS = {"linear", "matmul"}
RUNS, FEW = 20, 2  # of the first large case with two threads; of the others


@pytest.fixture
def threads():
    before = anyop.get_num_threads()
    yield anyop.set_num_threads
    anyop.set_num_threads(before)


def bits(subject, case, kept: dict) -> list[bytes]:
    """Of arguments that are kept, unless the operator writes into them: to draw large ones takes longest."""
    arguments = kept or build(subject, case).arguments
    if not subject.metadata["mutated"]:
        kept.update(arguments)
    with np.errstate(all="ignore"):
        found = subject.function(**arguments)
    return [array.tobytes() for array in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("subject", DECLARED.values(), ids=DECLARED)
def test_same_bits(subject, threads):
    choices = testing.dtype_choices(subject.metadata)
    drawn = testing.good_cases(subject, choices[0])
    cases = [case for case in drawn if case.what in ("large", "base")]
    large = next(case for case in cases if case.what == "large")
    for choice in [c for c in choices if c.is_uniform][:2] or choices[:2]:
        for case in (replace(case, choice=choice) for case in cases):
            threads(1)
            kept: dict = {}
            expected = bits(subject, case, kept)
            for count in (1, 2, 3):
                threads(count)
                if subject.name in BY_THREADS:
                    expected = bits(subject, case, kept)
                for _ in range(RUNS if case.label == large.label and count == 2 else FEW):
                    assert bits(subject, case, kept) == expected, (case.label, str(choice), count)


def test_all_do():
    assert set(SUBJECTS) == set(DECLARED)
