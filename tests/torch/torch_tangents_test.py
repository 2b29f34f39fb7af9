# SPDX-License-Identifier: Apache-2.0
"""torch's forward mode of every operator with [tangent]: the formulas, difference quotients, reverse mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyop.torch
import numpy as np
import pytest
import torch
from anyop import testing
from anyop.adapter.tangent import Tangent
from anyop.testing.torch_cases import torch_calls
from torch.func import jvp

SUBJECTS = {s.name: s for s in testing.find_subjects(Path(__file__).parents[2] / "ops")}
WITH = [name for name, subject in SUBJECTS.items() if subject.metadata["tangent"]]
NAMES = pytest.mark.parametrize("name", WITH)


def random(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def float64(subject):
    """The combination of dtypes that is float64 but for integers, masks and what is float32 always."""
    wanted = {"float64", "float32", "int32", "int64", "bool", None}
    choices = testing.dtype_choices(subject.metadata)
    fits = [c for c in choices if set(c.names.values()) <= wanted]
    return max(fits, key=lambda c: [[*c.names.values()].count(t) for t in ("float64", "int64")])


@dataclass
class Case:
    """A good call in float64, as a function of the inputs that have a formula."""

    label: str
    subject: testing.Subject
    given: dict[str, Any]  # all inputs
    tangents: dict[str, torch.Tensor]  # of those that have a formula and are given

    def run(self, op, names, *values):
        """The call with these values of some inputs."""
        found = {**self.given, **dict(zip(names, values))}
        params = self.subject.inputs
        positional = [found[p["name"]] for p in params if not p["keyword_only"]]
        named = {p["name"] for p in params if p["keyword_only"]}
        return op(*positional, **{name: found[name] for name in named & set(found)})

    def function(self, form="anyop", names=None):
        """Of the inputs with these names: all with a formula, if none are named."""
        op = getattr(anyop if form == "anyop" else torch.ops.anyop, self.subject.name)
        return partial(self.run, op, list(self.tangents) if names is None else names)

    def primals(self):
        return tuple(self.given[name] for name in self.tangents)


def cases(name, what=("base", "absent", "broadcast")):
    """At most four."""
    subject = SUBJECTS[name]
    for label, args, kwargs in islice(torch_calls(subject, what, float64(subject)), 4):
        positional = [p["name"] for p in subject.inputs if not p["keyword_only"]]
        given = dict(zip(positional, args)) | kwargs
        names = [n for n in subject.metadata["tangent"] if given[n] is not None]
        tangents = dict(zip(names, random(*(given[n].shape for n in names))))
        yield Case(label, subject, given, tangents)


def expected_tangent(case, out):
    """The formulas in NumPy, which tests/operators/tangents_test.py compares with slopes."""

    def call(name, args, kwargs):
        laid = [
            np.ascontiguousarray(a) if isinstance(a, np.ndarray) and a.ndim else a for a in args
        ]
        return getattr(anyop, name)(*laid, **kwargs)

    def fill(like, shape, number):
        return np.full(like.shape if shape is None else shape, number, like.dtype)

    values = {p["name"]: p.get("default") for p in case.subject.inputs} | case.given
    values[case.subject.results[0]["name"]] = out
    values = {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    values = {n: "float64" if v is torch.float64 else v for n, v in values.items()}
    arrays = {n: t.numpy() for n, t in case.tangents.items()}
    found = Tangent(case.subject.metadata).push(values, arrays, call, fill, out.numpy().dtype)
    return torch.zeros_like(out) if found is None else torch.from_numpy(np.asarray(found))


@NAMES
def test_jvp_is_the_formula(name):
    """All tangents at once and each by itself, by both forms of call."""
    compared = 0
    for case in cases(name):
        for form in ("anyop", "torch.ops"):
            run, primals = case.function(form), case.primals()
            out, tangent = jvp(run, primals, tuple(case.tangents.values()))
            assert torch.equal(out, run(*primals)), case.label
            wanted = expected_tangent(case, out)
            torch.testing.assert_close(tangent, wanted, rtol=1e-12, atol=1e-12, msg=case.label)
            parts = [
                jvp(case.function(form, [n]), (case.given[n],), (t,))[1]
                for n, t in case.tangents.items()
            ]
            torch.testing.assert_close(sum(parts), wanted, rtol=1e-9, atol=1e-9, msg=case.label)
            compared += 1
    assert compared >= 2


@NAMES
def test_gradcheck_of_forward_mode(name):
    """Against torch's own difference quotients, of many elements along random lines; reverse mode too where it is."""
    (case,) = cases(name, ("base",))
    zero = [n for n, tree in case.subject.metadata["tangent"].items() if tree[0] == "value"]
    names = [n for n in case.tangents if n not in zero]  # what is 0 by convention is no slope
    leaves = [case.given[n].clone().requires_grad_() for n in names]
    assert torch.autograd.gradcheck(
        case.function(names=names),
        leaves,
        fast_mode=sum(leaf.numel() for leaf in leaves) > 300,
        check_forward_ad=True,
        check_backward_ad=case.subject.metadata["backward"] is not None,
    )


@pytest.mark.parametrize("name", [n for n in WITH if SUBJECTS[n].metadata["backward"]])
def test_forward_is_the_transpose_of_reverse(name):
    for case in cases(name):
        primals = [value.clone().requires_grad_() for value in case.primals()]
        out = case.function()(*primals)
        (g,) = random(out.shape)
        reverse = torch.autograd.grad(out, primals, g)
        tangents = tuple(case.tangents.values())
        forward = jvp(case.function(), case.primals(), tangents)[1]
        right = sum((t * r).sum() for t, r in zip(tangents, reverse))
        torch.testing.assert_close((forward * g).sum(), right, rtol=1e-9, atol=1e-9, msg=case.label)
