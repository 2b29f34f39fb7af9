# SPDX-License-Identifier: Apache-2.0
"""Every operator with a CUDA kernel on rows of any length, on many rows, and on tensors of more than 2^31 elements.

Rows of one length are compared with the reference in float64. Large results are compared with those of the same call on
parts of the rows, so that nothing of their size is needed in float64. Numbers that are none stay in their row.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyop
import pytest
from anyop import testing
from anyop.cases.dtype_choices import is_floating, numpy_dtype
from anyop.cases.good_cases import Case
from anyop.cases.sizes import evaluate, product
from anyop.cases.subject import Subject
from anyop.cases.values import shapes_of
from anyop.testing.torch_memory import through_torch
from drawn import drawn, few
from on_cuda import DEVICE, SUBJECTS, same_bits, torch
from row_points import (
    combinations,
    grouped_cases,
    is_by_rows,
    is_divided,
    is_grouped,
    is_of_any_length,
    largest,
    row_case,
)

WIDTHS = [1, 2, 3, 31, 33, 1023, 65_535, 65_537, 131_072, 262_144]
LAYOUTS = ["plain", "offset", "rows"]  # of an array of its own, one element in, of a sliced view
REFERENCE = 1 << 21  # elements of a tensor that NumPy goes through in float64
WORK = 1 << 37  # combinations of sizes, as of rows of pages or of a window, that it goes through
ROWS = [(3, 65_536), (64, 70_001), (1, 1 << 20), (1000, 65_537)]  # columns, rows
HUGE = (1 << 31) + 5000


def uniform_choices(subject: Subject) -> list[testing.DtypeChoice]:
    choices = testing.dtype_choices(subject.metadata)
    return [choice for choice in choices if choice.is_uniform] or choices


@contextlib.contextmanager
def by_cuda(name: str) -> Iterator[None]:
    """The CUDA kernels by route, and that they ran."""
    testing.observe(name)
    with anyop.use("cuda"):
        yield
    assert any(k.backend == "cuda" and k.calls for k in testing.kernel_calls(name))


def with_long_sums(subject: Subject) -> Subject:
    """Its results with the bound of a sum of the widest rows. float64: the reference's own error, for NumPy adds along
    a first dimension one by one. float32: four roundings of a sum of n normal numbers, which is some sqrt(n).
    """
    tolerance = dict(subject.metadata["tolerance"])
    for dtype, bound in (
        ("float64", WIDTHS[-1] * 2.0**-53),
        ("float32", 4 * WIDTHS[-1] ** 0.5 * 2.0**-24),
    ):
        if dtype in tolerance:
            tolerance[dtype] = max(tolerance[dtype], bound)
    return replace(subject, metadata={**subject.metadata, "tolerance": tolerance})


# They have tests of their own: their seeds, slots and dtypes must fit one another.
APART = {"sample", "sample_probs", "decoder_layer", "grouped_wgrad_accumulate"}
ANY_LENGTH = [name for name, s in SUBJECTS.items() if is_of_any_length(s) and name not in APART]
TURNED = [name for name, s in SUBJECTS.items() if "dim" in s.metadata["symbols"]["attributes"]]


@pytest.mark.parametrize(
    ("name", "turned"),
    [(n, False) for n in ANY_LENGTH] + [(n, True) for n in TURNED],
)
def test_rows_of_every_length(name, turned):
    """turned: a column is what the operator takes for a row."""
    subject = SUBJECTS[name]
    there, failures, tried = with_long_sums(through_torch(subject, DEVICE)), [], 0
    optional = frozenset(param["name"] for param in subject.tensors if param["optional"])
    with by_cuda(name):
        for choice in few(uniform_choices(subject), 2, name):
            for at, width in enumerate(WIDTHS):
                for layout in drawn(LAYOUTS, 3 if width > 1023 else 1, f"{name} {width}"):
                    case = row_case(
                        subject, choice, width, 5 if width < 65_536 else 3, layout,
                        absent=optional if at % 2 else frozenset(), turned=turned,
                    )  # fmt: skip
                    if not case or largest(subject, case.point) > REFERENCE:
                        continue
                    if combinations(case.point) > WORK:
                        continue
                    tried += 1
                    try:
                        testing.check_case(there, case)
                    except testing.CheckError as error:
                        failures.append(str(error))
    assert not failures, f"{len(failures)} of {tried}:\n" + "\n".join(failures[:8])
    assert tried >= 6


@pytest.mark.parametrize("name", [name for name, s in SUBJECTS.items() if is_grouped(s)])
def test_groups_of_short_rows(name):
    subject, there = SUBJECTS[name], through_torch(SUBJECTS[name], DEVICE)
    with by_cuda(name):
        for choice in few(uniform_choices(subject), 3, name):
            for case in grouped_cases(subject, choice):
                testing.check_case(there, case)


def numbers(subject: Subject, case: Case) -> dict[str, Any]:
    """The arguments of a case, drawn on the device: as large as its memory allows."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    test, found = subject.metadata["test"] or {}, dict(case.point.attributes)
    for param in subject.inputs:
        name, dtype = param["name"], case.choice.names.get(param["name"])
        if param["kind"] != "Tensor":
            if dtype:
                found[name] = dtype
            continue
        if name in case.absent:
            continue
        (shape,), kind = shapes_of(param, case), getattr(torch, dtype)
        bounds = [
            b if isinstance(b, float) else evaluate(b, case.point.sizes)
            for b in test.get("range", {}).get(name, ())
        ]
        if is_floating(dtype):
            drawn_in = kind if kind.itemsize > 1 else torch.bfloat16
            values = torch.randn(shape, generator=generator, device=DEVICE, dtype=drawn_in)
            if bounds:
                values.sigmoid_().mul_(bounds[1] - bounds[0]).add_(bounds[0])
            found[name] = values.to(kind)
        else:
            low, high = bounds or (0, 2 if dtype == "bool" else 9)
            made = torch.empty(shape, device=DEVICE, dtype=kind)
            found[name] = made.random_(low, high, generator=generator)
        if name in test.get("sorted", ()):
            found[name] = found[name].sort()[0]
    return found


def run(subject: Subject, arguments: dict[str, Any]) -> list[torch.Tensor]:
    results = subject.function(**arguments)
    return list(results) if isinstance(results, tuple) else [results]


def part_of(subject: Subject, arguments: dict[str, Any], rows: slice) -> dict[str, Any]:
    divided = {p["name"] for p in subject.tensors if is_divided(subject, p)}
    return {k: v[rows] if k in divided else v for k, v in arguments.items()}


def check_parts(subject: Subject, case: Case, count: int) -> None:
    """One call has the results that calls for parts of the rows have; what sums over rows is their sum."""
    arguments = numbers(subject, case)
    rows = next(
        len(arguments[p["name"]])
        for p in subject.tensors
        if p["name"] in arguments and is_divided(subject, p)
    )
    found = run(subject, arguments)
    sums: dict[str, torch.Tensor] = {}
    for part in range(count):
        place = slice(rows * part // count, rows * (part + 1) // count)
        once = run(subject, part_of(subject, arguments, place))
        for param, whole, one in zip(subject.results, found, once, strict=True):
            if is_divided(subject, param):
                assert_near(subject, whole[place], one, f"{param['name']}[{place}]")
            else:
                sums[param["name"]] = sums.get(param["name"], 0) + one.double()
    for param, whole in zip(subject.results, found):
        if (total := sums.get(param["name"])) is not None:
            error = (whole.double() - total).abs().max().item()
            assert error <= 0.03 * (1 + total.abs().max().item()), param["name"]


def assert_near(subject: Subject, one: torch.Tensor, other: torch.Tensor, what: str) -> None:
    """Rounding apart: a few rows may be summed in another order than many."""
    name = str(one.dtype)[6:]
    limit = 2 * subject.metadata["tolerance"].get(name, 0)
    for a, b in zip(one.split(1 + len(one) // 8), other.split(1 + len(one) // 8)):
        if torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
            continue
        assert limit, what
        a, b = (t.float() if t.itemsize < 4 else t.double() for t in (a, b))
        wrong = ~((a - b).abs() <= limit * (1 + b.abs()))
        assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} are off"


def small_choice(subject: Subject) -> testing.DtypeChoice:
    """The tensors' dtypes with the fewest bytes, floats before integers."""

    def bytes_of(choice: testing.DtypeChoice) -> tuple:
        names = [choice.names[p["name"]] for p in subject.tensors if choice.names[p["name"]]]
        return not any(map(is_floating, names)), sum(numpy_dtype(name).itemsize for name in names)

    return min(uniform_choices(subject), key=bytes_of)


@pytest.fixture(autouse=True)
def memory_given_back():
    """Other processes that test on this device need it."""
    yield
    torch.cuda.empty_cache()


# The others have tests of their own: products by tiles, attention, caches, weights of 4 bits.
BY_ROWS = [name for name, subject in SUBJECTS.items() if is_by_rows(subject)]


@pytest.mark.parametrize("name", [name for name in BY_ROWS if SUBJECTS[name].results])
def test_many_rows(name):
    subject = SUBJECTS[name]
    cases = [
        row_case(subject, choice, columns, rows)
        for choice in (small_choice(subject), uniform_choices(subject)[0])
        for columns, rows in ROWS
    ]
    cases = [case for case in cases if case and largest(subject, case.point) <= 1 << 26]
    if not cases:
        pytest.skip("its conditions allow none of these rows")
    with by_cuda(name):
        for case in cases:
            check_parts(subject, case, 3)


@contextlib.contextmanager
def memory_alone(needed: int) -> Iterator[None]:
    """For one process at a time; skips where the device has less."""
    with (Path(tempfile.gettempdir()) / "anyop_device_memory").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        if free < needed:
            pytest.skip(f"{free >> 30} GiB are free, {needed >> 30} are needed")
        try:
            yield
        finally:
            torch.cuda.empty_cache()


def huge_case(subject: Subject, columns: int) -> Case | None:
    """As many rows as make the largest tensor so long."""
    choice = small_choice(subject)
    one = row_case(subject, choice, columns, 1)
    if one is None:
        return None
    return row_case(subject, choice, columns, -(-HUGE // largest(subject, one.point)))


LONG = [name for name in BY_ROWS if SUBJECTS[name].metadata["symbols"]["sizes"] == ["D"]]


@pytest.mark.parametrize(
    ("name", "columns"), [(n, 4096) for n in BY_ROWS] + [(n, 131_072) for n in LONG]
)
def test_more_than_two_to_the_31_elements(name, columns):
    subject = SUBJECTS[name]
    case = next(filter(None, (huge_case(subject, n) for n in (columns, 1024, 64))), None)
    assert case, "no sizes fit"
    sizes = 0
    for param in subject.tensors + subject.results:
        dtype = case.choice.names.get(param["name"]) or "float32"
        (shape,) = shapes_of(param, case)
        sizes += product(shape) * numpy_dtype(dtype).itemsize
    with memory_alone(2 * sizes), by_cuda(name):
        check_parts(subject, case, 8)


@pytest.mark.parametrize("columns", [33, 1024, 65_537])
@pytest.mark.parametrize("name", BY_ROWS)
def test_nan_and_infinities_stay_in_their_row(name, columns):
    """Other rows keep their bits, whichever way a row is shared by threads and blocks."""
    subject, rows, tried = SUBJECTS[name], 41, 0
    choices = [choice for choice in uniform_choices(subject) if has_nan(subject, choice)]
    if not choices:
        pytest.skip("no tensor of floats is divided into rows")
    with by_cuda(name):
        for choice in few(choices, 2, name):
            case = row_case(subject, choice, columns, rows)
            if not case or largest(subject, case.point) > 1 << 24:
                case = row_case(subject, choice, 33, rows)
            arguments = numbers(subject, case)
            before = run(subject, arguments)
            for row, value in ((0, "nan"), (17, "inf"), (40, "-inf"), (18, "nan")):
                changed = dict(arguments)
                for param in subject.tensors:
                    one = changed.get(param["name"])
                    if one is None or not is_divided(subject, param) or one.itemsize == 1:
                        continue
                    if one.is_floating_point() or one.is_complex():
                        changed[param["name"]] = one.clone()
                        changed[param["name"]][row].view(-1)[3::7] = float(value)
                others = torch.arange(rows, device=DEVICE) != row
                for param, one, other in zip(subject.results, before, run(subject, changed)):
                    if is_divided(subject, param):
                        assert same_bits(one[others], other[others]), (case.label, value)
                        tried += 1
    if not tried:
        pytest.skip("no result is divided into rows")


def has_nan(subject: Subject, choice: testing.DtypeChoice) -> bool:
    """Whether a tensor of the rows has a dtype with NaN and infinities."""
    names = [choice.names[p["name"]] for p in subject.tensors if is_divided(subject, p)]
    return any(name and is_floating(name) and "8" not in name for name in names)
