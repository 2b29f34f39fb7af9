# SPDX-License-Identifier: Apache-2.0
"""Operators of rows on the CPU: 1 to 262,144 columns, 0 to many rows, and NaN and infinities stay in theirs.

As tests/cuda/operators/cuda_shapes.py on a GPU. Eight operators, drawn by the commit; all with ANYOP_TEST_FULL=1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anyop import testing
from anyop.cases.dtype_choices import is_floating
from anyop.cases.subject import Subject
from anyop.cases.values import build
from drawn import drawn, few
from failures import failures_of, show
from row_points import is_by_rows, is_divided, largest, row_case

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
OPS = Path(__file__).parents[2] / "ops"
FAMILIES = ["norm", "softmax", "elementwise", "rope", "quant", "reduction", "topk", "embedding"]
NAMES = {file.stem for family in FAMILIES for file in (OPS / family).glob("*.toml")}
WIDTHS = [1, 2, 3, 31, 33, 1023, 65_535, 65_537, 131_072, 262_144]
ROWS = [(8, 65_536), (33, 4_097), (5, 1), (5, 0)]  # columns, rows
LAYOUTS = ["plain", "offset", "rows"]  # of an array of its own, one element in, of a sliced view
REFERENCE = 1 << 20  # elements of a tensor that NumPy goes through in float64


def bounded(subject: Subject) -> Subject:
    """Numbers below 2 in magnitude: what tolerances are derived for, however many are drawn. A weight that a result
    is divided by again is not near 0.
    """
    divides = "from_output_backward" in subject.name
    test = dict(subject.metadata["test"] or {})
    ranges = {p["name"]: [-2.0, 2.0] for p in subject.tensors if is_float(subject, p)}
    if divides:
        ranges["weight"] = [0.5, 1.5]
    test["range"] = {**ranges, **test.get("range", {})}
    # A reference that adds one by one is off by this itself, in float64. A running sum in float32, of the 1,024 rows
    # that have one index of 64: as many roundings of partial sums of up to 32, with either sign.
    tolerance = dict(subject.metadata["tolerance"])
    if "float64" in tolerance:
        tolerance["float64"] = max(tolerance["float64"], WIDTHS[-1] * 2.0**-53)
    if subject.name == "embedding_backward":
        tolerance["float32"] = max(tolerance["float32"], 1024 * 2.0**-24)
    return replace(subject, metadata={**subject.metadata, "test": test, "tolerance": tolerance})


def is_float(subject: Subject, param: dict[str, Any]) -> bool:
    names = {choice.names[param["name"]] for choice in testing.dtype_choices(subject.metadata)}
    return all(name is None or is_floating(name) for name in names)


SUBJECTS = {s.name: bounded(s) for s in testing.find_subjects(OPS) if s.name in NAMES}
CHOSEN = few(list(SUBJECTS), 8, "rows")


def uniform_choices(subject: Subject) -> list[testing.DtypeChoice]:
    choices = testing.dtype_choices(subject.metadata)
    return [choice for choice in choices if choice.is_uniform] or choices


@pytest.mark.parametrize("name", CHOSEN)
def test_rows_of_every_length(name):
    subject, cases = SUBJECTS[name], []
    optional = frozenset(param["name"] for param in subject.tensors if param["optional"])
    for choice in few(uniform_choices(subject), 2, name):
        for at, width in enumerate(WIDTHS):
            for layout in drawn(LAYOUTS, 3 if width > 1023 else 1, f"{name} {width}"):
                absent = optional if at % 2 else frozenset()
                case = row_case(
                    subject, choice, width, 3 if width < 131_072 else 1, layout, absent=absent
                )
                if case and largest(subject, case.point) <= REFERENCE:
                    cases.append(case)
    show(failures_of(subject, cases), len(cases))
    assert len(cases) >= 6


@pytest.mark.parametrize("name", CHOSEN)
def test_many_rows(name):
    subject, cases = SUBJECTS[name], []
    for choice in few(uniform_choices(subject), 2, name):
        found = [row_case(subject, choice, columns, rows) for columns, rows in ROWS]
        cases += [case for case in found if case and largest(subject, case.point) <= REFERENCE]
    show(failures_of(subject, cases), len(cases))
    assert len(cases) >= 2


def has_nan(subject: Subject, choice: testing.DtypeChoice) -> bool:
    """Whether a tensor of the rows has a dtype with NaN and infinities."""
    names = [choice.names[p["name"]] for p in subject.tensors if is_divided(subject, p)]
    return any(name and is_floating(name) and "8" not in name for name in names)


def with_row(arguments: dict[str, Any], subject: Subject, row: int, value: float) -> dict[str, Any]:
    """The same arguments, but for some elements of one row of what is divided into rows."""
    found = dict(arguments)
    for param in subject.tensors:
        one = found.get(param["name"])
        if one is None or not is_divided(subject, param) or one.dtype.itemsize == 1:
            continue
        if is_floating(one.dtype.name):
            changed = one.copy()
            changed[row].reshape(-1)[3::7] = value
            found[param["name"]] = changed
    return found


def results(subject: Subject, arguments: dict[str, Any]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        found = subject.function(**arguments)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", CHOSEN)
def test_nan_and_infinities_stay_in_their_row(name):
    """Other rows keep their bits, however many a kernel goes through at once."""
    subject, rows, tried = SUBJECTS[name], 13, 0
    choices = [choice for choice in uniform_choices(subject) if has_nan(subject, choice)]
    if not choices or not is_by_rows(subject):
        pytest.skip("no tensor of floats is divided into rows")
    for choice in choices:
        for columns in (33, 1024):
            case = row_case(subject, choice, columns, rows) or row_case(subject, choice, 33, rows)
            arguments = build(subject, case).arguments
            before = results(subject, arguments)
            for row, value in ((0, np.nan), (5, np.inf), (12, -np.inf), (6, np.nan)):
                others = np.arange(rows) != row
                after = results(subject, with_row(arguments, subject, row, value))
                for param, one, other in zip(subject.results, before, after):
                    if is_divided(subject, param):
                        same = one[others].tobytes() == other[others].tobytes()
                        assert same, (case.label, str(choice), param["name"], value)
                        tried += 1
    if not tried:
        pytest.skip("no result is divided into rows")
