# SPDX-License-Identifier: Apache-2.0
"""An operator by way of one framework: arrays become its tensors, its results become arrays again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from anyop.cases.callers import Caller
from anyop.cases.dtype_choices import DtypeChoice, choices_here
from anyop.cases.good_cases import Case, standard_cases
from anyop.cases.placed import raw
from anyop.cases.subject import Subject
from anyop.cases.values import build
from anyop.testing.check import Checked, CheckError

_MOST_CHOICES = 16
_LEFT_OUT = ("view", "large", "random")  # what they try lies behind the framework's own tensors


def through(subject: Subject, caller: Caller) -> Subject:
    """The operator as testing.check_values takes it; TypeError where a result is no tensor of the framework."""

    def call(**arguments: Any) -> Any:
        given = caller.arguments(arguments)
        found = subject.function(**given)
        for name in subject.metadata["mutated"]:
            _copy_back(caller, given.get(name), arguments.get(name))
        if isinstance(found, tuple):
            return tuple(_array(caller, value) for value in found)
        return _array(caller, found)

    made = replace(subject, function=call)
    if "reference" in subject.__dict__:
        made.__dict__["reference"] = subject.reference  # loaded once
    return made


def check_bits(subject: Subject, turned: Subject, case: Case) -> Checked:
    """Compares with what NumPy gets, where there is no reference: CheckError where a bit differs."""
    results = []
    for function in (subject.function, turned.function):
        with np.errstate(all="ignore"):
            found = function(**build(subject, case).arguments)
        results.append(
            [raw(a) for a in (found if isinstance(found, tuple) else (found,)) if a is not None]
        )
    if results[0] != results[1]:
        raise CheckError(f"{subject.name} [{case.choice}] {case.label}: other bits than from NumPy")
    return Checked(calls=2)


def few_cases(subject: Subject, choice: DtypeChoice) -> Iterator[Case]:
    """Three good cases of every class, for a framework may compile each shape anew."""
    classes: dict[str, list[Case]] = {}
    for case in standard_cases(subject, choice):
        if case.what not in _LEFT_OUT and not case.layouts:
            classes.setdefault(case.what, []).append(case)
    for cases in classes.values():
        last = len(cases) - 1
        yield from (cases[at] for at in sorted({0, last // 2, last}))


def few_choices(metadata: dict[str, Any], caller: Caller) -> list[DtypeChoice]:
    """Combinations of dtypes that the framework has: of very many some, those of one dtype before others."""
    fitting = [
        choice
        for choice in choices_here(metadata)
        if all(caller.has_dtype(name) for name in choice.names.values() if name)
    ]
    return sorted(fitting, key=lambda choice: not choice.is_uniform)[:_MOST_CHOICES]


def unable(subject: Subject, caller: Caller) -> str | None:
    """Why the operator cannot be called from this framework; None when it can."""
    backends = [kernel["backend"] for kernel in subject.metadata["kernels"]]
    if caller.backend not in backends:
        return f"no kernel for {caller.backend}"
    if subject.metadata["mutated"] and not caller.writes:
        return f"{caller.name}'s arrays cannot be written"
    return None


def _array(caller: Caller, value: Any) -> np.ndarray | None:
    if value is None:
        return None
    if not caller.is_tensor(value):
        raise TypeError(f"a {type(value).__name__} came out, expected a tensor of {caller.name}")
    return np.array(caller.array(value))


def _copy_back(caller: Caller, tensors: Any, arrays: Any) -> None:
    """What the operator changed in the tensors, into the arrays that they were made of."""
    pairs = zip(tensors, arrays) if isinstance(arrays, list) else [(tensors, arrays)]
    for tensor, array in pairs:
        if array is not None:
            array[...] = caller.array(tensor)
