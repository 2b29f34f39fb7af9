# SPDX-License-Identifier: Apache-2.0
"""[tangent]: what formulas become in the metadata, and every mistake in them, with its place and the fix."""

from __future__ import annotations

import pytest

from ..python.docs import reference_page
from ..python.metadata import metadata
from ..sample_operators import sample, toml_of
from .folders import read_folders
from .formulas import parse_formula, text_of_tree

FLOAT = ["float32"]


def file(schema: str, shapes: dict, dtypes: dict, **sections) -> str:
    """An operator file, complete but for what a test adds."""
    return toml_of(sample(schema, shapes, dtypes, kernels={}, **sections))


def same(*names: str) -> tuple[dict, dict]:
    return dict.fromkeys(names, "*"), dict.fromkeys(names, FLOAT)


FILES = {
    "mul": file(
        "mul(Tensor x, Tensor y) -> Tensor",
        *same("x", "y", "out"),
        tangent={"x": "mul(tangent_x, y)", "y": "mul(x, tangent_y)"},
    ),
    "plus": file(
        "plus(Tensor x, Tensor y, *, float alpha=1) -> Tensor",
        *same("x", "y", "out"),
        tangent={"x": "plus(tangent_x, zeros_y)", "y": "plus(zeros_x, tangent_y, alpha=alpha)"},
    ),
    "tanh": file(
        "tanh(Tensor x) -> Tensor",
        *same("x", "out"),
        backward={"name": "tanh_backward", "saves": ["out"]},
        tangent={"x": "tanh_backward(tangent_x, out)"},
    ),
    "tanh_backward": file(
        "tanh_backward(Tensor grad_out, Tensor out) -> Tensor grad_x",
        *same("grad_out", "out", "grad_x"),
    ),
    "opaque": file("opaque(Tensor x) -> Tensor", *same("x", "out")),
    "fill": file("fill(Tensor(a!) x) -> ()", {"x": "*"}, {"x": FLOAT}),
    "join": file("join(Tensor[] xs) -> Tensor", {"xs": "[N] *P", "out": "2"}, same("xs", "out")[1]),
    "pair": file(
        "pair(Tensor x, int n=1) -> (Tensor? a, Tensor? b)", *same("x", "a", "b")
    ),
    "number": file("number(Tensor x, int k, float f=1, bool b=False) -> Tensor", *same("x", "out")),
}  # fmt: skip
SCHEMA = "scale(Tensor x, Tensor n, Tensor? w=None, float eps=1, int? k=None, str s='a') -> Tensor"
SHAPES = dict.fromkeys(("x", "n", "w", "out"), "*")
DTYPES = {"x": FLOAT, "n": ["int64"], "w": FLOAT, "out": "x"}


def read(folder, tangent: dict, schema: str = SCHEMA, **more):
    """The operators, and the messages about scale.toml."""
    shapes, dtypes = more.get("shapes", SHAPES), more.get("dtypes", DTYPES)
    files = {**FILES, "scale": file(schema, shapes, dtypes, tangent=tangent)}
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    operators, errors = read_folders([folder])
    return {op.name: op for op in operators}, [str(error) for error in errors]


def test_formulas_are_trees_in_the_metadata(tmp_path):
    formula = "plus(mul(tangent_x, w or 1), mul(tangent_x, ones_x), alpha=-2)"
    operators, errors = read(tmp_path, {"w": "0", "x": formula})
    assert errors == []
    found = metadata(operators["scale"])["tangent"]
    tangent = ["name", "tangent_x"]
    left = ["call", "mul", [tangent, ["or", ["name", "w"], 1]], {}]
    right = ["call", "mul", [tangent, ["name", "ones_x"]], {}]
    assert found == {
        "x": ["call", "plus", [left, right], {"alpha": ["value", -2]}],
        "w": ["value", 0],
    }
    assert text_of_tree(found["x"]) == formula
    assert metadata(operators["opaque"])["tangent"] is None
    page = reference_page(list(operators.values()))
    assert "Forward mode: w and x." in page and page.count("Forward mode") == 4


def test_values_of_all_kinds():
    assert parse_formula("anyop.f(None, True, 1.5, -3, acme.g(x), n=False)") == [
        "call",
        "f",
        [["value", None], ["value", True], ["value", 1.5], ["value", -3], ["call", "acme.g", [["name", "x"]], {}]],
        {"n": ["value", False]},
    ]  # fmt: skip


def test_operators_of_a_library_that_is_not_read_are_left_to_it(tmp_path):
    assert read(tmp_path, {"x": "other.anything(tangent_x, x, sideways=3)"})[1] == []


@pytest.mark.parametrize(
    "formula, found, fix",
    [
        ("mul(tangent_x", "the formula 'mul(tangent_x'", "write it like"),
        ("tangent_x + x", "'tangent_x + x' in a formula", "write it like"),
        ("mul(tangent_x, 'a')", "''a'' in a formula", "write it like"),
        ("mul(tangent_x, x[0])", "'x[0]' in a formula", "write it like"),
        ("mul(tangent_x, 1e999)", "in a formula", "write it like"),
        ("mul(tangent_x, 9223372036854775808)", "in a formula", "write it like"),
        ("mul(tangent_x, w or x)", "'w or x' in a formula", "write it like"),
        ("mul(*tangent_x)", "'*' in the call of 'mul'", "write it like"),
        ("mul(x, **tangent_x)", "'*' in the call of 'mul'", "write it like"),
        ("a.b.c(tangent_x)", "a call of 'a.b.c'", "write it like"),
        ("f()(tangent_x)", "a call of 'f()'", "write it like"),
        ("mul(tangent_x, x, x=" + "mul(" * 400 + "x" + ")" * 400, "the formula", "write it like"),
        ("1", "the formula '1' of 'x'", "correct it"),
        ("False", "the formula 'False' of 'x'", "correct it"),
        ("mul(x, x)", "the formula of 'x' does not use tangent_x", "or write 0"),
        ("mul(tangent_x, wa)", "the formula of 'x' names 'wa'", "'w'?"),
        ("mul(tangent_w, tangent_x)", "names 'tangent_w'", "tangent_x"),
        ("mul(tangent_x, zeros_k)", "names 'zeros_k'", "'zeros_x'?"),
        ("mul(tangent_x, x or 1)", "'x or 1' in the formula of 'x'", "write x"),
        ("mull(tangent_x, x)", "no operator 'mull'", "'mul'?"),
        ("other.f(x, anyop.mul(tangent_x))", "'y' of 'mul' is missing", "give it"),
        ("mul(tangent_x)", "'y' of 'mul' is missing", "give it"),
        ("mul(tangent_x, x, x)", "3 arguments of 'mul' without a name", "remove them"),
        ("plus(tangent_x, zeros_x, eps)", "3 arguments of 'plus' without a name", "name the others"),
        ("plus(tangent_x, zeros_x, alpa=eps)", "'plus' has no argument 'alpa'", "'alpha'?"),
        ("mul(tangent_x, y=x, x=x)", "'x' of 'mul' is given twice", "remove one"),
        ("mul(tangent_x, None)", "'None' for 'y' of 'mul'", "give one"),
        ("mul(tangent_x, 1)", "'1' for 'y' of 'mul'", "name an argument"),
        ("mul(tangent_x, eps)", "'eps' for 'y' of 'mul'", "'eps' is of type float"),
        ("mul(tangent_x, w)", "'w' for 'y' of 'mul', which may be None", "write 'w or 1'"),
        ("mul(tangent_x, ones_w)", "'ones_w' for 'y' of 'mul', which may be None", "write 'w or 1'"),
        ("mul(tangent_x, x, out=False)", "no result of 'mul' is wanted", "remove one out=False"),
        ("plus(tangent_x, zeros_x, alpha=k)", "'k' for 'alpha' of 'plus'", "write a number"),
        ("plus(tangent_x, zeros_x, alpha=True)", "'True' for 'alpha' of 'plus'", "write a number"),
        ("mul(tangent_x, number(x, k))", "'k' for 'k' of 'number', which may be None", "correct it"),
        ("mul(tangent_x, number(x, 1.0))", "'1.0' for 'k' of 'number'", "write a number"),
        ("mul(tangent_x, number(x, 1, s))", "'s' for 'f' of 'number'", "write a number"),
        ("mul(tangent_x, number(x, 1, 1, 0))", "'0' for 'b' of 'number'", "write a number"),
        ("number(tangent_x, tangent_x)", "'tangent_x' for 'k' of 'number'", "write a number"),
        ("mul(tangent_x, pair(x, a=False, b=False))", "no result of 'pair' is wanted", "a=False"),
        ("mul(tangent_x, pair(x, a=0))", "'0' for 'a' of 'pair'", "remove it"),
        ("mul(tangent_x, fill(x))", "'fill' gives no new result", "correct it"),
        ("mul(tangent_x, join(x))", "'x' for 'xs' of 'join'", "use another"),
        ("mul(tangent_x, tangent_x)", "'mul' is not linear in x and y", "elsewhere"),
        ("mul(mul(tangent_x, x), mul(x, tangent_x))", "'mul' is not linear in", "elsewhere"),
        ("tanh(tangent_x)", "'tanh' is not linear in x,", "elsewhere"),
        ("tanh_backward(x, tangent_x)", "'tanh_backward' is not linear in out,", "elsewhere"),
        ("tanh_backward(tangent_x, tangent_x)", "'tanh_backward' is not linear in", "elsewhere"),
        ("opaque(tangent_x)", "'opaque' says nothing of how its result depends on 'x'", "elsewhere"),
        ("plus(tangent_x, x)", "'y' is added to what depends on the tangent", "leave it out"),
        ("plus(mul(x, x), mul(x, tangent_x))", "'x' is added to what depends on", "leave it out"),
    ],
)  # fmt: skip
def test_mistakes_in_formulas(formula, found, fix, tmp_path):
    """One line: the place of the formula, what was found, what to do."""
    _, errors = read(tmp_path, {"w": "0", "x": formula})
    path = tmp_path / "scale.toml"
    line = path.read_text(encoding="utf-8").splitlines().index("[tangent]") + 3
    assert len(errors) == 1 and errors[0].startswith(f"{path}:{line}: "), errors
    message, advice = errors[0].split("; ", 1)
    assert found in message and ", expected " in message and fix in advice, errors[0]


@pytest.mark.parametrize(
    "formula",
    [
        "tangent_x",
        "tanh_backward(tangent_x, x)",
        "plus(tangent_x, tangent_x, alpha=eps)",
        "plus(zeros_x, tangent_x)",
        "mul(tangent_x, pair(x, a=False))",
        "mul(number(x, 3, eps), tangent_x)",
    ],
)
def test_linear_formulas(formula, tmp_path):
    assert read(tmp_path, {"x": formula})[1] == []


@pytest.mark.parametrize(
    "tangent, more, found, fix",
    [
        ({"y": "0"}, {}, "[tangent] names 'y'", "remove it"),
        ({"n": "0"}, {}, "'n', which is of type int64", "remove it"),
        ({"eps": "0"}, {}, "'eps', which is of type float", "remove it"),
        ({"x": 0}, {}, "the formula of 'x' is 0", "write one sentence"),
        (
            {"xs": "0"},
            {"schema": "scale(Tensor[] xs) -> Tensor", "shapes": {"xs": "[N] *P", "out": "2"},
             "dtypes": {"xs": FLOAT, "out": FLOAT}},
            "'xs', which is of type Tensor[]", "remove it",
        ),
        (
            {"x": "0"},
            {"schema": "scale(Tensor(a!) x) -> Tensor", "shapes": same("x", "out")[0],
             "dtypes": same("x", "out")[1]},
            "that writes its argument 'x'", "remove [tangent]",
        ),
        (
            {"x": "0"},
            {"schema": "scale(Tensor x) -> (Tensor a, Tensor b)", "shapes": same("x", "a", "b")[0],
             "dtypes": same("x", "a", "b")[1]},
            "with the results (a and b), expected one result", "remove [tangent]",
        ),
        (
            {"x": "0"},
            {"schema": "scale(Tensor x) -> Tensor", "shapes": same("x", "out")[0],
             "dtypes": {"x": FLOAT, "out": ["int64"]}},
            "whose result is int64, expected a floating", "remove [tangent]",
        ),
        (
            {"x": "0"},
            {"schema": "scale(Tensor x, Tensor tangent_x) -> Tensor",
             "shapes": same("x", "tangent_x", "out")[0], "dtypes": same("x", "tangent_x", "out")[1]},
            "an argument 'tangent_x' beside [tangent]", "rename it",
        ),
    ],
)  # fmt: skip
def test_what_can_have_no_tangent(tangent, more, found, fix, tmp_path):
    _, errors = read(tmp_path, tangent, **more)
    assert len(errors) == 1 and found in errors[0].split("; ")[0], errors
    assert fix in errors[0].split("; ", 1)[1], errors[0]
