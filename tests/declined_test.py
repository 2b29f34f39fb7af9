# SPDX-License-Identifier: Apache-2.0
"""Which calls a Python kernel takes: conditions of arguments."""

from __future__ import annotations

import anyop
import numpy as np
import pytest


@pytest.fixture
def register():
    """anyop.register for one test."""
    made = []

    def add(op, name, function, **options):
        made.append((op, name))
        return anyop.register(op, name, function, **options)

    yield add
    for op, name in made:
        if name in anyop.backends(op):
            anyop.unregister(op, name)


def test_conditions_of_arguments_that_are_no_tensors(register):
    """Words of floats, ints, optional tensors; absent numbers hold for nothing."""
    q = np.random.default_rng(0).standard_normal((1, 2, 3, 4), dtype=np.float32)

    def nothing(q, k, v, *rest, out):
        out[...] = 0

    def runs(**options):
        return not anyop.attention(q, q, q, **options).any()

    for when, holds, fails, why in [
        ("softcap=0", {}, {"softcap": 0.5}, "takes softcap=0, and softcap is 0.5"),
        ("softcap>=1", {"softcap": 1.5}, {"softcap": 0.75}, "takes softcap>=1, and softcap is 0.75"),
        ("causal=1", {"causal": True}, {}, "takes causal=1, and causal is 0"),
        ("offset!=-3", {"offset": 3}, {"offset": -3}, "takes offset!=-3, and offset is -3"),
        ("scale<1", {"scale": 0.5}, {}, "takes scale<1, and that is absent"),
        ("given(mask)=0", {}, {"mask": np.ones((3, 3), bool)}, "takes given(mask)=0, and it is given"),
        ("given(sinks)=1", {"sinks": np.ones(2, np.float32)}, {}, "takes given(sinks)=1, and it is absent"),
    ]:  # fmt: skip
        register("attention", "when", nothing, when=when, priority=5)
        assert runs(**holds) and not runs(**fails), when
        found = anyop.explain("attention", q, q, q, **fails).candidates
        assert {c["name"]: c["why_not"] for c in found}["when"] == why
        anyop.unregister("attention", "when")
