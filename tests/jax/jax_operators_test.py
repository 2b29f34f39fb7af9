# SPDX-License-Identifier: Apache-2.0
"""Every operator on JAX's arrays: its standard cases, compiled and eager, and its derivatives."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from anyop import testing
from anyop.cases.values import reference_arguments

jax = pytest.importorskip("jax", reason="jax is not installed")

# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {  # what writes to its arguments gives more results in a program than elsewhere
    s.name: s
    for s in testing.find_subjects(Path(__file__).parents[2] / "ops")
    if s.results and not s.metadata["mutated"]
}
DIFFERENTIABLE = [name for name, subject in SUBJECTS.items() if subject.metadata["backward"]]
FORWARD = [name for name, subject in SUBJECTS.items() if subject.metadata["tangent"]]
subjects = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
STEP = 1e-6


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def as_jax(value):
    """NumPy's arrays, also in lists, as JAX's; all else as it is."""
    if isinstance(value, list):
        return [as_jax(item) for item in value]
    return jax.device_put(value.copy()) if isinstance(value, np.ndarray) else value


def as_jax_all(arrays):
    return {name: as_jax(value) for name, value in arrays.items()}


def split_numpy(arguments):
    """Arrays and lists of arrays, and what is none."""

    def holds_array(value):
        return any(
            isinstance(v, np.ndarray) for v in (value if isinstance(value, list) else [value])
        )

    arrays = {name: value for name, value in arguments.items() if holds_array(value)}
    return arrays, {name: value for name, value in arguments.items() if name not in arrays}


def split(arguments):
    """The same with JAX's arrays: jax.jit takes the first, and gets a function that knows the second."""
    arrays, rest = split_numpy(arguments)
    return as_jax_all(arrays), rest


def listed(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def assert_same(found, expected, label):
    """The same bits in the same dtype: JAX and NumPy run the same kernel."""
    assert len(listed(found)) == len(listed(expected)), label
    for a, b in zip(listed(found), listed(expected)):
        if b is None:
            assert a is None, label
            continue
        assert isinstance(a, jax.Array), label
        assert np.dtype(a.dtype) == b.dtype and a.shape == b.shape, label
        assert np.asarray(a).tobytes() == np.ascontiguousarray(b).tobytes(), label


def few_cases(subject):
    """One case of each class in the first dtypes, one of every other dtype, some of mixed ones."""
    first, *others = testing.dtype_choices(subject.metadata)
    found = {}
    for case in testing.good_cases(subject, first):
        found.setdefault(case.what, case)
    others = [c for at, c in enumerate(others) if c.is_uniform or at % 23 == 0]
    return [*found.values(), *(testing.Good(subject, choice).case for choice in others)]


@subjects
def test_compiled_results_are_numpys(subject):
    """All cases in one program."""
    split_cases, expected, labels = [], [], []
    for case in few_cases(subject):
        arguments = testing.build(subject, case).arguments
        expected.append(subject.function(**arguments))
        split_cases.append(split(arguments))
        labels.append(f"{subject.name} [{case.choice}] {case.label}")

    def program(all_arrays):
        return [
            subject.function(**arrays, **rest) for arrays, (_, rest) in zip(all_arrays, split_cases)
        ]

    found = jax.jit(program)([arrays for arrays, _ in split_cases])
    for one, other, label in zip(found, expected, labels, strict=True):
        assert_same(one, other, label)
    assert len(labels) >= 3


@subjects
def test_eager_results_fit_the_reference(subject):
    """What users call first; against float64."""
    case = testing.Good(subject).case
    built = testing.build(subject, case)
    arrays, rest = split(built.arguments)
    found = listed(subject.function(**arrays, **rest))
    expected = listed(subject.reference(**reference_arguments(subject, built)))
    for value, wanted in zip(found, expected, strict=True):
        tolerance = subject.metadata["tolerance"].get(np.dtype(value.dtype).name, 0)
        value = np.asarray(value, np.float64)
        wrong = np.abs(np.where(value == wanted, 0, value - wanted))  # infinities are equal
        assert ((wrong == 0) | (wrong <= tolerance * (1 + np.abs(wanted)))).all()
    assert_same(subject.function(**arrays, **rest), subject.function(**built.arguments), "again")


# ---- derivatives ----


def widest(subject):
    """A good call in float64, or in the widest dtype that the operator has."""

    def width(choice):
        names = [choice.names[param["name"]] for param in subject.tensors]
        bits = sum(64 if name == "float64" else 32 if name == "float32" else 0 for name in names)
        return bits, choice.names.get("dtype") == "float64"

    return testing.Good(subject, max(testing.dtype_choices(subject.metadata), key=width))


class Differentiated:
    """One call as a function of the arrays that have derivatives, and its float64 reference."""

    def __init__(self, name, sources):
        self.subject = SUBJECTS[name]
        self.good = widest(self.subject)
        self.arrays, self.rest = split(self.good.arguments())
        self.sources = [source for source in sources if source in self.arrays]
        self.random = np.random.default_rng(3)
        self.limit = 1e-7 if self.good.choice.names[self.sources[0]] == "float64" else 2e-4

    def function(self, *values):
        found = self.subject.function(
            **{**self.arrays, **dict(zip(self.sources, values)), **self.rest}
        )
        return listed(found)

    def values(self):
        return [self.arrays[source] for source in self.sources]

    def reference(self, shifts):
        given = reference_arguments(self.subject, testing.build(self.subject, self.good.case))
        for source, shift in zip(self.sources, shifts):
            given[source] = given[source] + shift
        return [np.asarray(value, np.float64) for value in listed(self.subject.reference(**given))]

    def directions(self):
        return [
            self.random.standard_normal(value.shape).astype(value.dtype) for value in self.values()
        ]

    def slopes(self, directions):
        """Of the float64 reference."""
        ahead, behind = (
            self.reference([step * d.astype(np.float64) for d in directions])
            for step in (STEP, -STEP)
        )
        return [(a - b) / (2 * STEP) for a, b in zip(ahead, behind)]

    def cotangents(self, with_gradient):
        """Of the results that the gradient goes through; the others are not used."""
        names = [param["name"] for param in self.subject.results]
        found = self.function(*self.values())
        return [
            self.random.standard_normal(value.shape).astype(value.dtype)
            if name in with_gradient
            else None
            for name, value in zip(names, found)
        ]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_slopes(name):
    """jax.grad inside jax.jit, with respect to all inputs and to each alone."""
    backward = SUBJECTS[SUBJECTS[name].metadata["backward"]["name"].replace("::", ".")]
    sources = [p["name"].removeprefix("grad_") for p in backward.results]
    case = Differentiated(name, sources)
    takes = {p["name"].removeprefix("grad_") for p in backward.inputs if p["name"][:5] == "grad_"}
    cotangents = case.cotangents(takes)

    def loss(*values):
        found = case.function(*values)
        return sum((f * c).sum() for f, c in zip(found, cotangents) if c is not None)

    places = tuple(range(len(case.sources)))
    ways = [places, *places]
    compiled = jax.jit(lambda *values: [jax.grad(loss, way)(*values) for way in ways])
    gradients, *alone = compiled(*case.values())
    directions = case.directions()
    slopes = case.slopes(directions)
    slope = sum((s * c).sum() for s, c in zip(slopes, cotangents) if c is not None)
    found = sum(float((g * d).sum()) for g, d in zip(gradients, directions))
    assert abs(found - slope) <= case.limit * (1 + abs(slope)), (found, slope)
    for one, gradient, value in zip(alone, gradients, case.values(), strict=True):
        assert np.allclose(one, gradient, rtol=1e-5, atol=1e-6)
        assert one.dtype == value.dtype and one.shape == value.shape


@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_the_slope(name):
    """jax.jvp: the formulas of [tangent]; and reverse mode of the same operator agrees."""
    case = Differentiated(name, list(SUBJECTS[name].metadata["tangent"]))
    directions = case.directions()
    _, tangents = jax.jit(lambda v, t: jax.jvp(case.function, v, t))(case.values(), directions)
    slope = case.slopes(directions)[0]
    assert np.abs(tangents[0] - slope).max() <= case.limit * (1 + np.abs(slope).max()) * 10


# ---- vmap ----


@subjects
def test_vmap_is_a_loop(subject):
    """All arrays batched, then the last one alone, at its last axis."""
    good = widest(subject)
    plain, rest = split_numpy(good.arguments())
    ascending = subject.metadata["test"].get("sorted", [])
    random = np.random.default_rng(5)

    def batch(name, axis):
        def other(value):
            mixed = value if name in ascending else random.permutation(value.ravel())
            return mixed.reshape(value.shape)

        def stacked(value):
            return np.stack([value, other(value), other(value)], axis)

        return jax.tree.map(stacked, plain[name])

    *_, last = plain
    behind = jax.tree.leaves(plain[last])[0].ndim
    for axes in (dict.fromkeys(plain, 0), {last: behind}):
        batched = {name: batch(name, axis) for name, axis in axes.items()}
        fixed = {name: value for name, value in plain.items() if name not in axes}

        def one(own, fixed=fixed):
            return listed(subject.function(**own, **fixed, **rest))

        traced = as_jax_all(fixed)
        found = jax.jit(jax.vmap(lambda own, f=traced: one(own, f), (axes,)))(as_jax_all(batched))
        for element in range(3):
            take = partial(np.take, indices=element)
            own = {n: jax.tree.map(partial(take, axis=axes[n]), v) for n, v in batched.items()}
            for got, expected in zip(found, one(own), strict=True):
                assert np.dtype(got.dtype) == expected.dtype
                a, b = (np.asarray(x, np.float64) for x in (got[element], expected))
                assert np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True), (axes, element)
