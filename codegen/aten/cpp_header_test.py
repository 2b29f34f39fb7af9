# SPDX-License-Identifier: Apache-2.0
"""Names, types and defaults of the C++ functions, from schemas made up for it. What compiles and runs: tests/."""

from __future__ import annotations

from .cpp_header import cpp_functions, header_text
from .facts import facts
from .registry import Registry

SCHEMAS = [
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    "add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor",
    "add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
    "add.Scalar_out(Tensor self, Scalar other, Scalar alpha=1, *, Tensor(a!) out) -> Tensor(a!)",
    "add.same(Tensor a, Tensor b, *, Scalar alpha=2) -> Tensor",
    "top(Tensor self, int new, bool sorted=True) -> (Tensor values, int, Tensor[] more)",
    'double(int[2] size=[1, 2], int[]? dim=[], int[1]? one=None, str text="a\'b") -> ()',
    "now() -> float",
    "set(Tensor self, Storage source) -> Tensor",
]


def functions() -> dict[str, list]:
    operators: dict[str, list[str]] = {}
    for schema in SCHEMAS:
        operators.setdefault(schema.partition("(")[0].partition(".")[0], []).append(schema)
    names = [schema.partition("(")[0] for schema in SCHEMAS]
    registry = Registry(
        version="2.13.0",
        commit="-",
        libraries="/lib",
        codes={"dtype": [], "layout": [], "format": [], "device": []},
        operators=operators,
        numbers=set(),
        tags={name: [] for name in names},
    )
    found: dict[str, list] = {}
    for function in cpp_functions(facts(registry)):
        found.setdefault(function.name, []).append(function)
    return found


def declared(function) -> str:
    return function.text().partition("\n")[2].partition("\n")[0]


def test_names():
    assert sorted(functions()) == [
        *("add", "add_Scalar", "add_Scalar_out", "add_Tensor", "add_out", "add_out_overload"),
        *("add_same", "double_", "double__default", "now", "now_default", "top", "top_default"),
    ]


def test_functions_with_one_signature_are_told_apart_by_their_own_names():
    found = functions()
    assert [f.schema.partition("(")[0] for f in found["add"]] == ["add.Tensor", "add.Scalar"]
    assert [f.schema.partition("(")[0] for f in found["add_out"]] == ["add.out", "add.Scalar_out"]


def test_results_that_are_given_come_first():
    (function,) = functions()["add_out_overload"]
    given = "const Tensor& out, const Tensor& self, const Tensor& other, Scalar alpha = 1"
    assert declared(function) == f"Tensor add_out_overload({given}) {{"
    assert "aten_values[] = {self, other, alpha, out};" in function.text()  # the schema's order


def test_words_of_cpp_and_several_results():
    (top,) = functions()["top"]
    name = "Results_values_out1_more"
    assert declared(top) == f"{name} top(const Tensor& self, Int new_, Bool sorted = true) {{"
    assert "Tensor values; int64_t out1; TensorList more;" in top.struct


def test_defaults():
    (double,) = functions()["double_"]
    assert declared(double) == (
        "void double_(const IntOrInts& size = {1, 2}, "
        "const OptList<Ints>& dim = std::initializer_list<Int>(), "
        'const OptList<IntOrInts>& one = {}, Str text = "a\'b") {'
    )
    (now,) = functions()["now"]
    assert declared(now) == "double now() {"


def test_what_is_of_use_to_a_program_that_opens_it():
    registry = Registry("2.13.0", "-", "/lib", {}, {}, set(), {})
    text = header_text(facts(registry), "/a b/table.txt", None)
    for line in (
        'constexpr char kTorchVersion[] = "2.13.0";',
        'constexpr char kTable[] = "/a b/table.txt";',
        'constexpr char kGlue[] = "";',
    ):
        assert line in text.splitlines()
