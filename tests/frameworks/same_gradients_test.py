# SPDX-License-Identifier: Apache-2.0
"""Gradients and graphs: every framework's differentiation gives what the backward operators give NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from anyop import testing

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}
DIFFERENTIABLE = [
    name
    for name, s in SUBJECTS.items()
    if s.metadata["backward"] and all(not p["list"] for p in s.tensors)
]


def _is_float32(names, attributes) -> bool:
    floats = {name for name in names.values() if name and "float" in name}
    asked = {names.get(name) for name in attributes} - {None}
    return floats == {"float32"} and asked <= floats


class Call:
    """A good call in float32, which of its arguments have gradients, and its first result's cotangent."""

    def __init__(self, name: str) -> None:
        self.subject = SUBJECTS[name]
        choices = testing.dtype_choices(self.subject.metadata)
        attributes = {p["name"] for p in self.subject.attributes}
        self.choice = next(c for c in choices if _is_float32(c.names, attributes))
        self.arguments = testing.Good(self.subject, self.choice).arguments()
        stated = self.subject.metadata["backward"]["name"]
        self.backward = SUBJECTS[stated.replace("::", ".")]
        gives = [p["name"].removeprefix("grad_") for p in self.backward.results]
        self.wanted = [n for n in gives if n in self.arguments]
        found = self.subject.function(**self.arguments)
        self.results = found if isinstance(found, tuple) else (found,)
        shape = self.results[0].shape
        self.cotangent = np.random.default_rng(5).standard_normal(shape).astype(np.float32)

    def expected(self) -> list[np.ndarray]:
        """The backward operator, called as docs/operators.md says."""
        names = [p["name"] for p in self.subject.results]
        values = {p["name"]: p["default"] for p in self.subject.attributes}
        values |= self.arguments
        if other := self.subject.metadata["backward"]["forward"]:  # what only that one gives
            named = [p["name"] for p in SUBJECTS[other].results]
            values |= dict(zip(named, SUBJECTS[other].function(**self.arguments), strict=True))
        values |= dict(zip(names, self.results))
        values |= {f"grad_{n}": np.zeros_like(r) for n, r in zip(names, self.results)}
        values[f"grad_{names[0]}"] = self.cotangent
        sizes = testing.Good(self.subject, self.choice).case.point.sizes.values
        given = {
            p["name"]: values.get(p["name"], sizes.get(p["name"])) for p in self.backward.inputs
        }
        found = self.backward.function(**{k: v for k, v in given.items() if v is not None})
        found = found if isinstance(found, tuple) else (found,)
        named = {p["name"].removeprefix("grad_"): f for p, f in zip(self.backward.results, found)}
        return [named[name] for name in self.wanted]

    def loss(self, caller):
        """The first result times its cotangent, as a function of tensors; those tensors, wanted ones first."""
        given = caller.arguments(self.arguments)
        others = [p["name"] for p in self.subject.tensors if p["name"] in given]
        names = [*self.wanted, *(name for name in others if name not in self.wanted)]

        def loss(*tensors):
            *inputs, cotangent = tensors
            found = self.subject.function(**{**given, **dict(zip(names, inputs))})
            found = found[0] if isinstance(found, tuple) else found
            return (found * cotangent).sum()

        return loss, [*(given[name] for name in names), caller.tensor(self.cotangent)]


@pytest.fixture(params=DIFFERENTIABLE)
def call(request, caller):
    if not caller.has_gradients:
        pytest.skip(f"{caller.name} has no gradients")
    return Call(request.param)


def test_gradients_are_those_of_the_backward_operator(caller, call):
    loss, tensors = call.loss(caller)
    count = len(call.wanted)
    found = caller.gradients(lambda *first: loss(*first, *tensors[count:]), tensors[:count])
    for name, a, b in zip(call.wanted, found, call.expected()):
        np.testing.assert_allclose(caller.array(a), b, rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_graph_gives_what_eager_calls_give(caller, call):
    loss, tensors = call.loss(caller)
    eager, graph = loss(*tensors), caller.graph(loss)(*tensors)
    np.testing.assert_allclose(caller.array(graph), caller.array(eager), rtol=1e-5)


def test_gradients_in_a_graph(caller, call):
    """The same numbers where forward and backward are part of one graph."""
    if caller.name != "jax":
        pytest.skip(f"{caller.name}: training in graphs is in its own tests")
    loss, tensors = call.loss(caller)
    count = len(call.wanted)

    def gradients(*tensors):
        return caller.gradients(lambda *first: loss(*first, *tensors[count:]), tensors[:count])

    for a, b in zip(caller.graph(gradients)(*tensors), call.expected()):
        np.testing.assert_allclose(caller.array(a), b, rtol=1e-6, atol=1e-7)
