# SPDX-License-Identifier: Apache-2.0
"""Runs one good case: values against the float64 reference, then into guarded memory, then in place.

A floating result fits when |found - expected| <= tolerance * (1 + |expected|); the inputs are rounded to their dtypes
before the reference sees them, and tolerance is the schema's for the dtype of that result. Where the expected value is
infinite or NaN in that dtype, so must be the found one. Results of other dtypes must be equal, or be no further off
than the tolerance that the schema states for an integer. `reference` gets every argument by name. An argument that the
operator changes (Tensor(a!)) must be changed by `reference` in the same way.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyop.cases.dtype_choices import is_floating, numpy_dtype, result_dtypes
from anyop.cases.good_cases import Case
from anyop.cases.placed import OUTPUT_FILL, kinds_of, raw
from anyop.cases.subject import Subject
from anyop.cases.values import (
    Built,
    build,
    in_float64,
    place_outputs,
    reference_arguments,
    result_shapes,
)


class CheckError(AssertionError):
    """What an operator did wrong, with its name and the case."""


@dataclass
class Checked:
    """How much one case looked at."""

    values: int = 0  # compared with the reference
    guard_bytes: int = 0  # seen to be untouched
    calls: int = 0

    def add(self, other: Checked) -> None:
        """Adds another case's counts."""
        self.values += other.values
        self.guard_bytes += other.guard_bytes
        self.calls += other.calls


@dataclass
class _Run:
    """One operator and case while they are checked."""

    subject: Subject
    case: Case
    checked: Checked

    def fail(self, what: str) -> CheckError:
        return CheckError(f"{self.subject.name} [{self.case.choice}] {self.case.label}: {what}")

    def call(self, arguments: dict[str, Any], positional: tuple = ()) -> list[Any]:
        """The results as a list."""
        self.checked.calls += 1
        try:
            with np.errstate(all="ignore"):
                found = self.subject.function(*positional, **arguments)
        except Exception as error:
            raise self.fail(f"raised {type(error).__name__}: {error}") from error
        count = len(self.subject.results)
        if count == 0 and found is None:
            return []
        if count > 1 and (type(found) is not tuple or len(found) != count):
            raise self.fail(f"returned a {type(found).__name__}, expected a tuple of {count}")
        return list(found) if count > 1 else [found]


def check_case(subject: Subject, case: Case, compare: bool = True) -> Checked:
    """Checks one case; CheckError says what is wrong. Without compare nothing is asked of a reference."""
    run = _Run(subject, case, Checked())
    built = build(subject, case)
    expected, mutated = _expected(run, built) if compare else (None, {})
    results = _check_new(run, built, expected, mutated)
    mutated = dict.fromkeys(built.mutated & built.arguments.keys()) if not compare else mutated
    changed = {name: _bytes(built.arguments[name]) for name in mutated}
    _check_given(run, results, changed)
    _check_inplace(run, results)
    _check_lists_inplace(run)
    if case.what in ("base", "absent"):
        _check_positional(run, results)
        _check_unwanted(run, results)
    return run.checked


def check_values(subject: Subject, case: Case) -> Checked:
    """Checks new results against the reference, and nothing else of the call: for functions that take no out=."""
    run = _Run(subject, case, Checked())
    built = build(subject, case)
    _check_new(run, built, *_expected(run, built))
    return run.checked


def _bytes(value: Any) -> list[bytes]:
    return [raw(a) for a in (value if isinstance(value, list) else [value]) if a is not None]


def _expected(run: _Run, built: Built) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """What the reference returns, and the arguments that it changed."""
    arguments = reference_arguments(run.subject, built)
    reference = run.subject.reference
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
            found = reference(**arguments)
    except Exception as error:
        raise run.fail(f"the reference raised {type(error).__name__}: {error}") from error
    count = len(run.subject.results)
    found = [] if count == 0 else [found] if count == 1 else list(found)
    shapes = list(result_shapes(run.subject, run.case).values())
    expected = [np.asarray(value) for value in found]
    if [value.shape for value in expected] != shapes:
        raise run.fail(f"the reference has shapes {[v.shape for v in expected]}, expected {shapes}")
    mutated = {name: arguments[name] for name in built.mutated if name in built.arguments}
    return expected, mutated


def _check_new(
    run: _Run, built: Built, expected: list | None, mutated: dict[str, Any]
) -> list[Any]:
    """The allocating form: types, shapes, dtypes, values where some are expected; arguments unchanged."""
    before = built.snapshot()
    results = run.call(built.arguments)
    dtypes = result_dtypes(run.subject.metadata, run.case.names)
    shapes = result_shapes(run.subject, run.case)
    for at, (param, found) in enumerate(zip(run.subject.results, results)):
        name, dtype = param["name"], dtypes[param["name"]][0]
        if type(found) is not np.ndarray or found.dtype != numpy_dtype(dtype):
            got = f"{type(found).__name__} of {getattr(found, 'dtype', '?')}"
            raise run.fail(f"{name} is a {got}, expected an ndarray of {dtype}")
        shape = shapes[name]
        if found.shape != shape or not found.flags.c_contiguous or not found.flags.writeable:
            layout = f"{found.shape}, strides {found.strides}"
            raise run.fail(f"{name} is {layout}; expected {shape}, contiguous, writeable")
        if expected is not None:
            _compare(run, name, dtype, found, expected[at])
    for name, value in mutated.items():
        found = built.arguments[name]
        pairs = zip(found, value) if isinstance(found, list) else [(found, value)]
        for array, expected_array in pairs:
            if array is not None:
                _compare(run, name, run.case.choice.names[name], array, expected_array)
    _check_unchanged(run, built, before)
    return results


def _compare(run: _Run, name: str, dtype: str, found: np.ndarray, expected: np.ndarray) -> None:
    run.checked.values += found.size
    if not is_floating(dtype):
        steps = run.subject.metadata["tolerance"].get(dtype)
        if steps is None:
            wrong = found != expected.astype(found.dtype)
        else:
            wrong = ~(np.abs(found.astype(float) - expected) <= steps)
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            raise run.fail(f"{name}{list(at)} is {found[at]}, expected {expected[at]}")
        return
    tolerance = run.subject.metadata["tolerance"].get(dtype)
    if tolerance is None:
        raise run.fail(f"[tolerance] says nothing of {dtype}, the dtype of {name}")
    got = in_float64(found)
    with np.errstate(all="ignore"):
        rounded = in_float64(expected.astype(found.dtype))
        limit = tolerance * (1 + np.abs(expected))
        fits = np.abs(got - expected) <= limit
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    wrong = ~np.where(np.isfinite(rounded), fits, same)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise run.fail(
            f"{name}{list(at)} is {got[at]}, expected {expected[at]} within {tolerance:g} * (1 + |expected|); "
            f"{int(wrong.sum())} of {wrong.size} are off"
        )


def _check_unchanged(run: _Run, built: Built, before: dict[str, list[bytes]]) -> None:
    after = built.snapshot()
    for name, memory in before.items():
        placed = built.placed[name]
        if name in built.mutated:
            if not all(p.array.base is None or p.is_guarded() for p in placed):
                raise run.fail(f"bytes outside of {name} were written")
        elif after[name] != memory:
            raise run.fail(f"{name} was changed, and the schema does not say so")


def _check_given(run: _Run, results: list[Any], changed: dict[str, list[bytes]]) -> None:
    """out= into memory with guards: the same bits, the same objects, nothing else touched."""
    names = [param["name"] for param in run.subject.results]
    built = build(run.subject, run.case)
    before = built.snapshot()
    outputs = place_outputs(run.subject, run.case)
    arrays = {name: placed.array for name, placed in outputs.items()}
    found = run.call({**built.arguments, **arrays})
    for name, result, given in zip(names, results, found):
        placed = outputs[name]
        if given is not placed.array:
            raise run.fail(f"{name}= was given, and another object came back")
        if not placed.is_guarded():
            raise run.fail(
                f"bytes outside of {name} were written ({run.case.layouts.get(name, 'offset')})"
            )
        run.checked.guard_bytes += placed.memory.size - placed.array.nbytes
        if raw(given) != raw(result):
            raise run.fail(
                f"{name}= got other bits than a new result has: {_difference(given, result)}"
            )
    for name, expected in changed.items():
        if _bytes(built.arguments[name]) != expected:
            raise run.fail(f"{name} was changed to other bits in a second call")
    _check_unchanged(run, built, before)


def _difference(given: np.ndarray, result: np.ndarray) -> str:
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (given, result))
    at = int(np.argmax(a != b)) // given.itemsize
    return f"element {at} is {given.reshape(-1)[at]!r} and was {result.reshape(-1)[at]!r}"


def _check_inplace(run: _Run, results: list[Any]) -> None:
    """A result that is exactly an argument, for which the schema allows it."""
    for name in run.subject.metadata["inplace"]:
        for param, result in zip(run.subject.results, results):
            built = build(run.subject, run.case)
            if name not in built.placed:
                continue
            (placed,) = built.placed[name]
            same = placed.array.shape == result.shape and placed.array.dtype == result.dtype
            kind = run.case.layouts.get(name, "plain")
            if not same or kind not in ("plain", *kinds_of(param["layout"], result.ndim, True)):
                continue
            (found,) = [
                value
                for value, of in zip(
                    run.call({**built.arguments, param["name"]: placed.array}), run.subject.results
                )
                if of is param
            ]
            if found is not placed.array or raw(found) != raw(result):
                raise run.fail(
                    f"{param['name']}={name} in place gives other bits than a new result"
                )
            if kind != "plain" and not placed.is_guarded():
                raise run.fail(f"bytes outside of {name} were written in place")


def _check_lists_inplace(run: _Run) -> None:
    """A written list whose elements are exactly those of a list that is read, where the schema allows it."""
    params = {param["name"]: param for param in run.subject.tensors}
    for name in run.subject.metadata["inplace"]:
        for other, written in params.items():
            apart, built = build(run.subject, run.case), build(run.subject, run.case)
            if not (params[name]["list"] and written["mutated"] and written["list"]):
                continue
            if name not in built.placed or other not in built.placed:
                continue
            pairs = list(zip(built.arguments[name], built.arguments[other]))
            if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in pairs):
                continue
            run.call(apart.arguments)
            run.call({**built.arguments, other: built.arguments[name]})
            for at, (a, b) in enumerate(zip(built.arguments[name], apart.arguments[other])):
                if raw(a) != raw(b):
                    raise run.fail(f"{other}={name} gives other bits in element {at} than apart")


def _check_positional(run: _Run, results: list[Any]) -> None:
    """Arguments by position mean the same."""
    arguments = build(run.subject, run.case).arguments
    positional = []
    for param in run.subject.inputs:
        if param["keyword_only"]:
            break
        positional.append(arguments.pop(param["name"], param["default"]))
    if any(isinstance(value, str) and value in ("inf", "-inf", "nan") for value in positional):
        return  # defaults that JSON cannot write
    for param, found, result in zip(
        run.subject.results, run.call(arguments, tuple(positional)), results
    ):
        if raw(found) != raw(result):
            raise run.fail(f"{param['name']} has other bits when arguments are given by position")


def _check_unwanted(run: _Run, results: list[Any]) -> None:
    """Optional results can be left out, and the others stay the same."""
    for param in run.subject.results:
        if not param["optional"]:
            continue
        arguments = build(run.subject, run.case).arguments
        found = run.call({**arguments, param["name"]: False})
        for other, value, result in zip(run.subject.results, found, results):
            if other is param and value is not None:
                raise run.fail(f"{param['name']}=False still made a result")
            if other is not param and raw(value) != raw(result):
                raise run.fail(f"{other['name']} has other bits without {param['name']}")


assert OUTPUT_FILL not in (
    0x00,
    0xFF,
)  # neither zeroed memory nor the NaN around inputs looks like a guard
