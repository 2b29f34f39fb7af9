# SPDX-License-Identifier: Apache-2.0
"""Every operator with [backward]: its gradients are the slopes of its float64 reference, found as the schema says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from anyop import testing
from anyop.testing.values import reference_arguments

pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 in NumPy are ml_dtypes arrays")

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[1] / "ops")}
DIFFERENTIABLE = [name for name, subject in SUBJECTS.items() if subject.metadata["backward"]]
STEP = 1e-6


def widest(subject) -> testing.Good:
    """A good call in float64, or in the widest dtype that the operator has."""
    choices = testing.dtype_choices(subject.metadata)

    def width(choice) -> int:
        names = [choice.names[param["name"]] for param in subject.tensors]
        return sum(64 if name == "float64" else 32 if name == "float32" else 0 for name in names)

    widest = max(width(choice) for choice in choices)
    fits = (
        c for c in choices if width(c) == widest and c.names.get("dtype", "float64") == "float64"
    )
    return testing.Good(subject, next(fits))


class Differentiated:
    """One call, the gradients of its results, and those that the backward operator finds for its inputs."""

    def __init__(self, name: str) -> None:
        self.subject = SUBJECTS[name]
        stated = self.subject.metadata["backward"]
        self.backward = SUBJECTS[stated["name"].replace("::", ".")]
        self.good = widest(self.subject)
        self.arguments = self.good.arguments()
        results = self.call(self.subject.function, self.arguments)
        names = [param["name"] for param in self.subject.results]
        self.results = dict(zip(names, results, strict=True))
        random = np.random.default_rng(0)
        takes = [param["name"] for param in self.backward.inputs]
        self.cotangents = {
            name: random.standard_normal(value.shape).astype(value.dtype)
            for name, value in self.results.items()
            if f"grad_{name}" in takes
        }
        gradients = self.call(self.backward.function, dict(self.backward_arguments()))
        wanted = [param["name"] for param in self.backward.results]
        self.gradients = dict(zip(wanted, gradients, strict=True))

    @staticmethod
    def call(function, arguments) -> tuple:
        found = function(**arguments)
        return found if isinstance(found, tuple) else (found,)

    def backward_arguments(self):
        """The contract of [backward], read off docs/operators.md."""
        saves = self.subject.metadata["backward"]["saves"]
        tensors = {**self.arguments, **self.results}
        defaults = {p["name"]: p["default"] for p in self.subject.attributes}
        for param in self.backward.inputs:
            name = param["name"]
            if name.startswith("grad_") and name[5:] in self.cotangents:
                yield name, self.cotangents[name[5:]]
            elif param["kind"] == "Tensor":
                assert name in saves
                yield name, tensors[name]
            elif name in defaults:
                yield name, self.arguments.get(name, defaults[name])
            else:
                yield name, self.good.case.point.sizes.values[name]

    def loss(self, name: str, shift: np.ndarray) -> float:
        """The float64 reference's results times their gradients, with one argument shifted."""
        built = testing.build(self.subject, self.good.case)
        given = reference_arguments(self.subject, built)
        given[name] = given[name] + shift
        results = self.call(self.subject.reference, given)
        named = dict(zip(self.results, results, strict=True))
        return sum(float((named[key] * g).sum()) for key, g in self.cotangents.items())


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_slopes(name):
    case, random, compared = Differentiated(name), np.random.default_rng(1), 0
    for result, gradient in case.gradients.items():
        source = result.removeprefix("grad_")
        shape, dtype = case.good.shapes[source], case.good.choice.names[source]
        assert gradient.shape == shape and gradient.dtype.name == dtype
        limit = 1e-7 if dtype == "float64" else 1e-4
        for _ in range(3):
            direction = random.standard_normal(shape)
            ahead, behind = (case.loss(source, step * direction) for step in (STEP, -STEP))
            slope, found = (ahead - behind) / (2 * STEP), float((gradient * direction).sum())
            assert abs(found - slope) <= limit * (1 + abs(slope)), (result, found, slope)
            compared += 1
    assert compared >= 3


def test_what_has_a_gradient():
    """Each operator of the tree but those that compute gradients."""
    others = set(SUBJECTS) - set(DIFFERENTIABLE)
    assert others == {name for name in SUBJECTS if name.endswith("_backward")}
    assert len(DIFFERENTIABLE) >= 19
