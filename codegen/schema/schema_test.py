# SPDX-License-Identifier: Apache-2.0
"""The schema grammar: what each notation becomes."""

from __future__ import annotations

import math

import pytest

from .params import MISSING, Param
from .schema import parse_schema
from .source import Mistake


def argument(text: str) -> Param:
    """The only argument of a schema."""
    (param,) = parse_schema(f"f({text}) -> ()").inputs
    return param


def test_namespaces():
    plain, other = (
        parse_schema("f(Tensor x) -> Tensor"),
        parse_schema(" acme::f( Tensor x )->Tensor "),
    )
    assert (plain.namespace, plain.name) == ("anyop", "f") and (other.namespace, other.name) == (
        "acme",
        "f",
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Tensor x", Param("x", "Tensor")),
        ("Tensor? x=None", Param("x", "Tensor", optional=True, default=None)),
        ("Tensor[] x", Param("x", "Tensor", is_list=True)),
        ("Tensor[]? x=None", Param("x", "Tensor", is_list=True, optional=True, default=None)),
        ("Tensor?[] x", Param("x", "Tensor", is_list=True, optional_elements=True)),
        ("Tensor?[]? x", Param("x", "Tensor", is_list=True, optional=True, optional_elements=True)),
        ("Tensor(a!) x", Param("x", "Tensor", mutated=True)),
        ("Tensor(a!)? x=None", Param("x", "Tensor", mutated=True, optional=True, default=None)),
        ("Tensor(a!)[] x", Param("x", "Tensor", mutated=True, is_list=True)),
        ("int x", Param("x", "int")),
        ("SymInt x=3", Param("x", "int", default=3)),
        ("SymInt[2] x=1", Param("x", "int", is_list=True, fixed_count=2, default=[1, 1])),
        (
            "int[2]? x=None",
            Param("x", "int", is_list=True, fixed_count=2, optional=True, default=None),
        ),
        ("int x=-9223372036854775808", Param("x", "int", default=-(2**63))),
        ("int[] x=[1, -2]", Param("x", "int", is_list=True, default=[1, -2])),
        ("float x=1", Param("x", "float", default=1.0)),
        ("float x=-inf", Param("x", "float", default=-math.inf)),
        ("float[] x=[0.9, 1]", Param("x", "float", is_list=True, default=[0.9, 1.0])),
        ("bool x=False", Param("x", "bool", default=False)),
        ("bool[3] x=true", Param("x", "bool", is_list=True, fixed_count=3, default=[True] * 3)),
        ("str x='a, (b) -> \"c\"'", Param("x", "str", default='a, (b) -> "c"')),
        ("str x='it\\'s, \\\\'", Param("x", "str", default="it's, \\")),
        ('str? x="none"', Param("x", "str", optional=True, default="none")),
        ("str[] x=['a', 'b']", Param("x", "str", is_list=True, default=["a", "b"])),
        ("ScalarType x", Param("x", "ScalarType")),
        (
            "ScalarType? x=torch.bfloat16",
            Param("x", "ScalarType", optional=True, default="bfloat16"),
        ),
        ("ScalarType[] x=[float32]", Param("x", "ScalarType", is_list=True, default=["float32"])),
    ],
)
def test_argument(text, expected):
    found = argument(text)
    assert found == expected and (found.default is MISSING) == ("=" not in text)
    assert type(found.default) is type(expected.default)


def test_keyword_only():
    inputs = parse_schema("f(Tensor x, *, Tensor y, int k=1, float z) -> ()").inputs
    assert [p.keyword_only for p in inputs] == [False, True, True, True]


@pytest.mark.parametrize(
    "results, names",
    [
        ("()", []),
        ("Tensor", ["out"]),
        ("Tensor y", ["y"]),
        ("(Tensor)", ["out"]),
        ("(Tensor, Tensor)", ["out0", "out1"]),
        ("(Tensor values, Tensor? indices)", ["values", "indices"]),
        ("(Tensor values, Tensor)", ["values", "out1"]),
    ],
)
def test_results(results, names):
    outputs = parse_schema(f"f(Tensor x) -> {results}").outputs
    assert [p.name for p in outputs] == names and all(p.output for p in outputs)
    assert [p.optional for p in outputs] == ["?" in part for part in results.split(",")][
        : len(names)
    ]


def test_no_arguments():
    assert parse_schema("f() -> Tensor").inputs == []


@pytest.mark.parametrize(
    "text",
    [
        "f(Tensor x) -> Tensor extra words", "f(Tensor x) - Tensor", "f(Tensor x", "f(,) -> ()",
        "f(Tensor x, ) -> ()", "f(Tensor x, *, *, int k) -> ()", "f(int(a!) x) -> ()",
        "f(Tensor x=[]) -> ()", "f(int?[] x) -> ()", "f(int x=0x) -> ()", "f(float x=1e999) -> ()",
        "f(str x='a\\0') -> ()", "f(bool x=None) -> ()", "f(int[] x=3) -> ()", "f(Scalar x) -> ()",
        "f(Tensor x) -> (Tensor", "f(Tensor x) -> int",
    ],
)  # fmt: skip
def test_refused(text):
    with pytest.raises(Mistake):
        parse_schema(text)
