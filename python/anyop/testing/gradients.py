# SPDX-License-Identifier: Apache-2.0
"""Checks the gradients that [backward] states: against slopes of the reference, and as frameworks give them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

import anyop
from anyop.cases.callers import Caller
from anyop.cases.dtype_choices import DtypeChoice, choices_here
from anyop.cases.subject import Subject
from anyop.cases.values import build, reference_arguments
from anyop.testing.check import CheckError
from anyop.testing.refusal import Good

_STEP = 1e-6
_DIRECTIONS = 3
_LIMITS = {"float64": 1e-7, "float32": 1e-4}  # of a difference quotient; a gradient has roundings


class Differentiated:
    """One call of an operator and of its backward operator, in NumPy; of the widest floats that it takes."""

    def __init__(self, subject: Subject, backward: Subject) -> None:
        self.subject, self.backward = subject, backward
        self.good = Good(subject, _widest(subject))
        self.arguments = self.good.arguments()
        names = [param["name"] for param in subject.results]
        self.results = dict(zip(names, _call(subject, self.arguments), strict=True))
        random = np.random.default_rng(0)
        takes = {param["name"] for param in backward.inputs}
        self.cotangents = {
            name: random.standard_normal(value.shape).astype(value.dtype)
            for name, value in self.results.items()
            if f"grad_{name}" in takes
        }

    @cached_property
    def gradients(self) -> dict[str, np.ndarray]:
        """By input: what the backward operator gives."""
        found = _call(self.backward, dict(self._backward_arguments()))
        names = [param["name"].removeprefix("grad_") for param in self.backward.results]
        gradients = dict(zip(names, found, strict=True))
        shares = self.subject.metadata["backward"]["shares"]
        return gradients | {name: gradients[source] for name, source in shares.items()}

    def _backward_arguments(self) -> Iterator[tuple[str, Any]]:
        """The contract of [backward]: every argument is found by its name."""
        tensors = {**self.arguments, **self._saved(), **self.results}
        defaults = {param["name"]: param["default"] for param in self.subject.attributes}
        for param in self.backward.inputs:
            name = param["name"]
            if name.removeprefix("grad_") in self.cotangents and name.startswith("grad_"):
                yield name, self.cotangents[name.removeprefix("grad_")]
            elif param["kind"] == "Tensor":
                yield name, tensors.get(name)
            elif name in defaults:
                yield name, self.arguments.get(name, defaults[name])
            else:
                yield name, self.good.case.point.sizes.values[name]

    def _saved(self) -> dict[str, Any]:
        """The results of the forward that runs instead when a gradient is recorded, if there is one."""
        stated = self.subject.metadata["backward"]["forward"]
        if not stated:
            return {}
        namespace, _, name = stated.replace("::", ".").rpartition(".")
        namespace = namespace or self.subject.metadata["namespace"]
        names = anyop.metadata(name if namespace == "anyop" else f"{namespace}.{name}")["results"]
        function = getattr(getattr(anyop.ops, namespace), name)
        found = function(**self.arguments)
        found = found if isinstance(found, tuple) else (found,)
        return dict(zip((param["name"] for param in names), found, strict=True))

    def loss(self, name: str, shift: np.ndarray) -> float:
        """The reference's results times their cotangents, with one argument shifted."""
        given = reference_arguments(self.subject, build(self.subject, self.good.case))
        given[name] = given[name] + shift
        with np.errstate(all="ignore"):
            found = self.subject.reference(**given)
        results = dict(zip(self.results, found if isinstance(found, tuple) else (found,)))
        return sum(float((results[key] * g).sum()) for key, g in self.cotangents.items())


def check_slopes(made: Differentiated) -> int:
    """Compares with difference quotients of the reference along some directions; CheckError, or how many."""
    compared, random = 0, np.random.default_rng(1)
    for name, gradient in made.gradients.items():
        limit = _LIMITS.get(made.good.choice.names[name])
        if limit is None:
            continue
        for _ in range(_DIRECTIONS):
            direction = random.standard_normal(gradient.shape)
            ahead, behind = (made.loss(name, step * direction) for step in (_STEP, -_STEP))
            slope, found = (ahead - behind) / (2 * _STEP), float((gradient * direction).sum())
            if not abs(found - slope) <= limit * (1 + abs(slope)):
                raise CheckError(
                    f"{made.subject.name}: the gradient of {name} along a direction is {found!r}, "
                    f"expected {slope!r}, the slope of the reference"
                )
            compared += 1
    return compared


def check_framework(made: Differentiated, caller: Caller) -> int:
    """Compares what the framework's own differentiation gives with the backward operator's results."""
    given = caller.arguments(made.arguments)
    names = list(made.gradients)
    cotangents = {name: caller.tensor(value) for name, value in made.cotangents.items()}
    order = list(made.results)

    def loss(*tensors: Any) -> Any:
        found = made.subject.function(**{**given, **dict(zip(names, tensors))})
        found = dict(zip(order, found if isinstance(found, tuple) else (found,)))
        first, *rest = ((found[name] * g).sum() for name, g in cotangents.items())
        return sum(rest, first)

    gradients = caller.gradients(loss, [given[name] for name in names])
    for name, gradient in zip(names, gradients):
        found, expected = caller.array(gradient), made.gradients[name]
        if found.shape != expected.shape or not np.allclose(found, expected, 1e-5, 1e-6):
            raise CheckError(
                f"{made.subject.name}: {caller.name}'s gradient of {name} is {_short(found)}, "
                f"expected {_short(expected)}, as {made.backward.name} gives it"
            )
    return len(names)


def _widest(subject: Subject) -> DtypeChoice:
    """All tensors in float64 where the operator takes it, else in the widest floats."""
    widths = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}

    def width(choice: DtypeChoice) -> int:
        return sum(widths.get(choice.names.get(param["name"]) or "", 0) for param in subject.inputs)

    return max(choices_here(subject.metadata), key=width)


def _call(subject: Subject, arguments: dict[str, Any]) -> tuple:
    found = subject.function(**arguments)
    return found if isinstance(found, tuple) else (found,)


def _short(array: np.ndarray) -> str:
    return f"{array.shape} {np.array2string(array.reshape(-1)[:4], precision=6)}"
