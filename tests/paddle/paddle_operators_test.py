# SPDX-License-Identifier: Apache-2.0
"""Every operator on Paddle's tensors: the standard cases, in the same memory, and the same cases in a static graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from anyop import testing

paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is an ml_dtypes array")

from anyop.testing.paddle_cases import through_paddle, to_array, to_paddle  # noqa: E402

# What returns nothing is for the test beside it, and for third_party_test.py.
SUBJECTS = {
    s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops") if s.results
}
MOST_CASES = 30  # of one operator and combination of dtypes; the core's own tests have all
MOST_CHOICES = 6
BACKWARDS = {"back", "rows_back"}  # Paddle has no negative strides


def choices(subject):
    """Combinations of dtypes; what NumPy calls uint16 is bfloat16 to Paddle."""
    return [c for c in testing.dtype_choices(subject.metadata) if "uint16" not in c.names.values()]


def some(items, most):
    """Spread evenly."""
    return items[:: 1 + len(items) // most]


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_standard_cases(subject):
    through = through_paddle(subject)
    kinds = Counter()
    for choice in some(choices(subject), MOST_CHOICES):
        for case in some(testing.standard_cases(subject, choice), MOST_CASES):
            if case.what != "large" and not BACKWARDS & set(case.layouts.values()):
                testing.check_case(through, case)
                kinds[case.what] += 1
    assert kinds["base"] and sum(kinds.values()) >= 20, kinds


def holds_arrays(value):
    return isinstance(value, list) and bool(value) and isinstance(value[0], np.ndarray)


def each(function, value):
    """Of a list: of its elements."""
    return [function(v) for v in value] if isinstance(value, list) else function(value)


def unknown_sizes(tensor):
    sizes = [None] * tensor.ndim
    return paddle.static.InputSpec(sizes, dtype=tensor.dtype, stop_gradient=True)


def in_graph(subject):
    """The operator in a static graph of its own, with every size that can be unknown unknown."""

    def call(**kwargs):
        arrays = {n: v for n, v in kwargs.items() if isinstance(v, np.ndarray) or holds_arrays(v)}
        others = {name: value for name, value in kwargs.items() if name not in arrays}

        def program(values):
            return subject.function(**dict(zip(arrays, values)), **others)

        # Paddle's own memory: the executor's threads free it, and may wait for ever with NumPy's (docs/paddle.md).
        tensors = [each(lambda x: to_paddle(x).clone(), value) for value in arrays.values()]
        specs = [each(unknown_sizes, tensor) for tensor in tensors]
        made = paddle.jit.to_static(program, input_spec=[specs], full_graph=True)(tensors)
        return tuple(map(to_array, made)) if isinstance(made, (list, tuple)) else to_array(made)

    return replace(subject, function=call)


# Graphs refuse what writes to its arguments.
PURE = {name: s for name, s in SUBJECTS.items() if not s.metadata["mutated"]}


@pytest.mark.parametrize("subject", PURE.values(), ids=PURE)
def test_graphs_equal_eager(subject):
    """Bit for bit, shapes found while the graph runs."""
    eager, graph = through_paddle(subject), in_graph(subject)
    compared = 0
    # Its graphs have no inputs of float8_e5m2.
    good = [c for c in choices(subject) if "float8_e5m2" not in c.names.values()]
    for choice in some(good, 2):
        cases = [c for c in testing.good_cases(subject, choice) if c.what in ("base", "attribute")]
        for case in some(cases, 2):
            arguments = testing.build(subject, case).arguments
            found, expected = graph.function(**arguments), eager.function(**arguments)
            pairs = zip(found, expected) if isinstance(found, tuple) else [(found, expected)]
            for a, b in pairs:
                assert a.dtype == b.dtype and a.shape == b.shape, case.label
                assert a.tobytes() == b.tobytes(), case.label
                compared += a.size
    assert compared
