# SPDX-License-Identifier: Apache-2.0
"""The shape and condition language: what each term becomes, and which terms bind a letter."""

from __future__ import annotations

import pytest

from .expressions import linear, parse_condition, parse_expression
from .shapes import parse_shape
from .source import Mistake


@pytest.mark.parametrize(
    "text, before, group, after, more",
    [
        ("", (), None, (), {}),
        ("D", ("D",), None, (), {}),
        ("* D", (), "_", ("D",), {}),
        ("N *B C", ("N",), "B", ("C",), {}),
        ("* 2*D", (), "_", (("*", 2, "D"),), {}),
        ("B+1", (("+", "B", 1),), None, (), {}),
        ("* ceil(D / 128)", (), "_", (("ceildiv", "D", 128),), {}),
        ("min(a, b) M*N", (("min", "a", "b"), ("*", "M", "N")), None, (), {}),
        ("[N] *P", (), "P", (), {"length": "N"}),
        ("expand(B H S T)", ("B", "H", "S", "T"), None, (), {"expand": True}),
        ("[N] expand(*X D)", (), "X", ("D",), {"expand": True, "length": "N"}),
        ("broadcast(*X, *Y) M N", (), ("X", "Y"), ("M", "N"), {}),
        ("broadcast(x, y)", (), None, (), {"whole": ("x", "y")}),
        ("rank(X)+1 numel(_)", (("+", ("rank", "X"), 1), ("numel", "_")), None, (), {}),
        ("3 1*D D+0 2*3", (3, "D", "D", 6), None, (), {}),
        ("(mode == 'a b')*D", (("*", ("text", "mode", "a b"), "D"),), None, (), {}),
        ("(mode!='a') *", (("==", ("text", "mode", "a"), 0),), "_", (), {}),
    ],
)
def test_shape(text, before, group, after, more):
    shape = parse_shape(text)
    assert (shape.before, shape.group, shape.after) == (before, group, after)
    assert {
        key: value
        for key, value in vars(shape).items()
        if key in ("length", "expand", "whole") and value
    } == more


@pytest.mark.parametrize(
    "text",
    [
        "* *", "*X *Y", "[] D", "[2] D", "broadcast(*X)", "broadcast(*X, *X)", "broadcast(*, *Y)",
        "D expand(E)", "2D", "D 'x'", "D.x", "f(D)", "min(D)", "ceil(D)", "ceil(D//2)", "rank(D+1)",
        "D%0", "D//0", "D if 1 else 2", "1.5", "True", "--", "D and E", "D\x00", "(" * 500 + "D",
        "~D", "D<E", "*2", "2**D", "[N", "(mode < 'a')", "(mode in 'a')", "(mode in ())", "('a' == mode)",
        "(mode == 'a' == 'b')", "(mode in ('a', 1))", "(dtype(x, y) == 'a')", "(D == 1)",
    ],
)  # fmt: skip
def test_shape_refused(text):
    with pytest.raises(Mistake):
        parse_shape(text)


@pytest.mark.parametrize(
    "text, solved",
    [
        ("D", ("D", 1, 0)),
        ("2*D", ("D", 2, 0)),
        ("D*2", ("D", 2, 0)),
        ("B+1", ("B", 1, 1)),
        ("1+B", ("B", 1, 1)),
        ("2*D-1", ("D", 2, -1)),
        ("3*(2*D+1)-4", ("D", 6, -1)),
        ("-2*D", None),
        ("1-D", None),
        ("D*E", None),
        ("D//2", None),
        ("ceil(D/2)", None),
        ("2147483647*(2*D)", None),
    ],
)
def test_linear(text, solved):
    assert linear(parse_expression(text)) == solved


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0 <= k <= D", ("and", ("<=", 0, "k"), ("<=", "k", "D"))),
        ("H % G == 0", ("==", ("%", "H", "G"), 0)),
        (
            "a > b or a >= c and a != 1",
            ("or", ("<", "b", "a"), ("and", ("<=", "c", "a"), ("!=", "a", 1))),
        ),
        ("-rank(X) <= dim", ("<=", ("-", 0, ("rank", "X")), "dim")),
        ("mode == 'a'", ("text", "mode", "a")),
        ("mode in ('a', 'b')", ("or", ("text", "mode", "a"), ("text", "mode", "b"))),
        ("mode not in ('a',)", ("==", ("text", "mode", "a"), 0)),
        ("dtype(x) == 'int8' or D > 1", ("or", ("text", "dtype(x)", "int8"), ("<", 1, "D"))),
        (
            "(mode == 'a') == (dtype(x) != 'int8')",
            ("==", ("text", "mode", "a"), ("==", ("text", "dtype(x)", "int8"), 0)),
        ),
    ],
)
def test_condition(text, expected):
    assert parse_condition(text) == expected


@pytest.mark.parametrize(
    "text", ["", "D", "not D == 1", "(D == 1) + 2 == 3", "D in E", "D is E", "1 == 1.0", "'x' == D"]
)
def test_condition_refused(text):
    with pytest.raises(Mistake):
        parse_condition(text)
