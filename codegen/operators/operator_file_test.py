# SPDX-License-Identifier: Apache-2.0
"""A whole operator file: letters bound, inputs expanded, dtypes possible; the metadata."""

from __future__ import annotations

import json

import pytest

from ..python.metadata import metadata, metadata_json
from ..sample_operators import FLOATS, SAMPLES, sample, write_sample
from ..schema.binding import Binding
from ..schema.schema import parse_schema
from .folders import read_folders


def read(tmp_path, *arguments, **more):
    """An operator, or the text of its mistake."""
    write_sample(tmp_path, sample(*arguments, **more))
    operators, errors = read_folders([tmp_path])
    return str(errors[0]) if errors else operators[0]


def test_all_samples_are_read(operators):
    assert len(operators) == len(SAMPLES)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("topk", Binding(["D"], ["k"], ["_"])),
        ("silu_and_mul", Binding(["D"], [], ["_"])),
        ("add", Binding([], [], ["X", "Y"], [("X", "Y")])),
        ("mul", Binding([], [], ["X", "Y"], [("X", "Y")])),
        ("mul_gradient", Binding([], [], ["X", "Y"], [("X", "Y")])),
        ("matmul", Binding(["M", "K", "N"], [], ["X", "Y"], [("X", "Y")])),
        ("softmax", Binding([], ["dim"], ["X"])),
        ("attention", Binding(list("BHSDGTE"))),
        ("varlen", Binding(["T", "D", "B"])),
        ("conv_nhwc", Binding(list("NHWCFPQ"), ["groups"])),
        ("multi_tensor_adam", Binding(["N"], ["step"], ["P"], element_groups=["P"])),
        ("rms_norm_quant", Binding(["D"], [], ["_"])),
    ],
)
def test_binding(name, expected, operators):
    assert operators[name].binding == expected


def test_possible_dtypes(operators):
    def possible(op, name):
        return set(next(p for p in operators[op].params if p.name == name).possible)

    assert possible("rms_norm", "out") == set(FLOATS) and possible("layer_norm", "mean") == {
        "float32"
    }
    assert possible("add", "out") == {"float16", "bfloat16", "float32", "float64", "int32"}
    assert possible("odd", "out") == {"float32", "bfloat16"}
    assert possible("cast", "out") == set(FLOATS) and possible("softmax_as", "out") == set(FLOATS)
    assert possible("attention", "mask") == {"bool", *FLOATS} and possible("topk", "indices") == {
        "int64"
    }


def test_struct_fields(operators):
    names = {name: [field.name for field in op.fields] for name, op in operators.items()}
    assert names["rms_norm"] == ["x", "weight", "eps", "out", "D", "rows"]
    assert names["add"] == ["x", "y", "alpha", "out", "numel_X", "numel_Y", "numel_XY"]
    types = {field.name: field.type for field in operators["multi_tensor_adam"].fields}
    assert (types["params"], types["lr"], types["betas"], types["clip"]) == (
        "AnyopTensorList",
        "double",
        "AnyopFloatList",
        "AnyopOptionalFloat",
    )
    assert (types["steps"], types["mode"], types["notes"], types["dtype"]) == (
        "AnyopIntList",
        "AnyopString",
        "AnyopStringList",
        "AnyopOptionalInt",
    )
    assert (types["mask"], types["N"], types["numel_P"]) == ("AnyopIntList", "int64_t", "int64_t")
    assert operators["rms_norm"].struct == "RmsNormArgs"


def test_kernels(operators, samples):
    cpu, cuda = operators["matmul"].kernels
    assert [file.name for file in cpu.files] == [
        "matmul.cc",
        "gemm.cc",
    ] and cpu.function == "anyop_matmul_cpu"
    assert (cuda.backend, cuda.arch, cuda.priority, cuda.function) == (
        "cuda",
        "80+",
        2,
        "anyop_matmul_cuda",
    )
    assert operators["index_put"].kernels[0].function == "acme_index_put_cpu"


def test_backward(operators):
    assert (
        operators["dropout"].backward.saves == ("x", "mask")
        and operators["dropout"].backward.forward == "native_dropout"
    )
    assert (
        operators["tanh"].backward.saves == ("out",) and operators["tanh"].backward.forward is None
    )


def test_backward_saves_only_what_the_forward_has(tmp_path):
    for data in SAMPLES:
        if "dropout" in data["schema"]:
            data = (
                {**data, "backward": {**data["backward"], "saves": ["masks"]}}
                if "backward" in data
                else data
            )
            write_sample(tmp_path, data)
    (error,) = read_folders([tmp_path])[1]
    assert (
        "saves 'masks', expected a tensor, input or result (x, out or mask); did you mean 'mask'?"
        in str(error)
    )


def test_an_operator_that_writes_its_argument_has_no_gradient(tmp_path):
    schema = "f(Tensor(a!) x) -> Tensor"
    shapes, dtypes = {"x": "*", "out": "*"}, {"x": FLOATS, "out": "x"}
    found = read(tmp_path, schema, shapes, dtypes, backward={"name": "f"})
    assert "[backward] of an operator that writes its argument 'x'" in found


def test_autocast_and_flops(operators, tmp_path):
    found = metadata(operators["tanh"])
    assert (found["autocast"], metadata(operators["dropout"])["autocast"]) == ("float32", None)
    assert found["flops"] == {"text": "20 * numel(*)", "expression": ("*", 20, ("numel", "_"))}
    assert metadata(operators["dropout"])["flops"] is None
    text = "2 * numel(broadcast(*X, *Y)) * rank(Y)"
    shapes = {"x": "*X", "y": "*Y", "out": "broadcast(*X, *Y)"}
    dtypes = {name: ["int8"] for name in shapes}
    op = read(tmp_path, PAIR, shapes, dtypes, flops=text, autocast="lower")
    found = json.loads(metadata_json(op))
    words = ["*", ["*", 2, ["numel", ["X", "Y"]]], ["rank", "Y"]]
    assert (found["flops"]["expression"], found["autocast"]) == (words, "lower")


def test_metadata_says_everything(operators):
    found = json.loads(metadata_json(operators["attention"]))
    mask = next(entry for entry in found["inputs"] if entry["name"] == "mask")
    assert mask["shape"] == {
        "text": "expand(B H S T)", "length": None, "expand": True,
        "before": ["B", "H", "S", "T"], "group": None, "after": [],
    }  # fmt: skip
    assert mask["optional"] and mask["has_default"] and mask["default"] is None and mask["expanded"]
    assert mask["dtypes"] == {"rule": "one_of", "names": ["bool"], "same_as": "q"}
    assert found["conditions"][1] == {
        "text": "H % G == 0",
        "expression": ["==", ["%", "H", "G"], 0],
    }
    assert found["test"]["sizes"] == {"G": [1, 2], "H": ["G", ["*", 2, "G"]]}
    topk = json.loads(metadata_json(operators["topk"]))
    assert topk["test"] == {"values": {"k": [0, 1, "D"], "largest": [True]}, "rank": {"_": [0, 2]}}
    bench = metadata(operators["rms_norm"])["bench"]["decode"]
    assert (bench["sizes"], bench["groups"]) == ({"D": 8192}, {"_": [64]})
    bench = metadata(operators["matmul"])["bench"]["batched"]
    assert (bench["groups"], bench["dtype"]) == ({"X": [8, 2], "Y": [1]}, "bfloat16")
    assert metadata(operators["dropout"])["backward"]["forward"] == "native_dropout"
    assert metadata(operators["add"])["results"][0]["dtypes"] == {
        "rule": "promote",
        "of": ("x", "y"),
    }
    assert metadata(operators["softmax_as"])["results"][0]["dtypes"]["otherwise"] == "x"
    lists = {entry["name"]: entry for entry in metadata(operators["multi_tensor_adam"])["inputs"]}
    assert (
        lists["params"]["mutated"]
        and lists["params"]["shape"]["length"] == "N"
        and lists["mask"]["fixed_count"] == 3
    )
    assert all(json.loads(metadata_json(op)) for op in operators.values())


LIST = "f(Tensor[] xs, Tensor y) -> Tensor"
LISTS = "f(Tensor[] xs, Tensor[] ys) -> Tensor"
PAIR = "f(Tensor x, Tensor y) -> Tensor"
DTYPE = "f(Tensor x, Tensor y, ScalarType d) -> Tensor"
MAYBE = "f(Tensor x, Tensor? w=None, int k=1) -> Tensor"
THREE = "f(Tensor x, Tensor y, Tensor z) -> (Tensor a, Tensor b)"


@pytest.mark.parametrize(
    "schema, shapes, dtypes, message",
    [
        (LIST, "*P; *; *", "", "write '[N] *P'"),
        (LISTS, "[N] *P; [M] *P; *", "", "'*P' outside the lists [N]"),
        (LISTS, "[N] P; [M] P; N", "", "'P' outside the lists [N]"),
        (LIST, "[N] *P; *; *", "y=xs", "names the list 'xs'"),
        (LIST, "[N] *P; N*M; M", "", "unbound letter 'N'"),
        (LIST, "[N] *P; N; N", "", None),
        ("f(Tensor[] xs, Tensor y, int n) -> Tensor", "[n] *P; *; *", "", "the argument 'n'"),
        ("f(Tensor(a!) x, Tensor y) -> Tensor", "*X; *Y; broadcast(x, y)", "", "'x' is expanded"),
        ("f(Tensor y, Tensor(a!) x) -> Tensor", "D; expand(D); D", "", "mutated argument 'x'"),
        (PAIR, "*X; *; broadcast(x, y)", "", None),
        (PAIR, "*; *; broadcast(x, y)", "", "broadcasts one group with itself"),
        (THREE, "*X; *Y; *Z; broadcast(*X, *Y); broadcast(*Y, *X) 1", "", None),
        (THREE, "*X; *Y; *Z; broadcast(*X, *Y); broadcast(*X, *Z)", "", "*X in two broadcasts"),
        ("f(Tensor y, Tensor? x=None) -> Tensor", "*Y; *X; broadcast(*X, *Y)", "", None),
        ("f(Tensor? x, Tensor y) -> Tensor", "D; D; D", "", None),
        ("f(Tensor? x, Tensor y) -> Tensor", "D; E; D", "", "bound by optional arguments only"),
        ("f(Tensor x, int? k=None) -> Tensor", "D; k", "", "argument of type int?"),
        ("f(Tensor x, ScalarType? d=None) -> Tensor", "D; D", "out=d", 'write "d or x"'),
        (DTYPE, "D; D; D", "out=d or y", "is never None"),
        (MAYBE, "D; D; D", "out=w or x", None),
        (MAYBE, "D; D; D", "out=x or w", "names 'w', which may be absent"),
        (MAYBE, "D; D; D", "out=x or x", "'x' is never None"),
        (MAYBE, "D; D; D", "out=k or x", "names 'k', expected a ScalarType"),
        (MAYBE, "D; D; D", "out=v or x", "a ScalarType argument or an optional tensor before 'or'"),
        (MAYBE, "D; D; D", "out=out or x", "names 'out', expected a ScalarType"),
        (MAYBE, "D; D; D", "x=w or x", "names 'x', which comes later"),
        (DTYPE, "D; D; D", "y=d", "that for results only"),
        (DTYPE, "D; D; D", "d=y", "a list of dtypes that it may be"),
    ],
)
def test_rules_of_binding(schema, shapes, dtypes, message, tmp_path):
    signature = parse_schema(schema)
    tensors = [param.name for param in signature.inputs + signature.outputs if param.is_tensor]
    rules = {name: ["float32"] for name in tensors}
    rules |= dict(item.split("=") for item in dtypes.split(";") if item)
    found = read(tmp_path, schema, dict(zip(tensors, shapes.split("; "), strict=True)), rules)
    assert (message in found) if message else not isinstance(found, str), found


def test_a_result_like_the_tensors_of_a_list(tmp_path):
    """What it takes from them, dtype and letters, is the same for all of them; other letters are each one's own."""
    shapes = {"xs": "[N] *P K", "ys": "[N] *P", "out": "K"}
    op = read(tmp_path, LISTS, shapes, {"xs": FLOATS, "ys": ["float32"], "out": "xs"})
    found = metadata(op)
    assert [param["alike"] for param in found["inputs"]] == [True, False]
    assert found["symbols"]["element_sizes"] == []
    assert found["symbols"]["element_groups"] == ["P"]


def test_hidden_folders_and_pyproject_are_no_operators(tmp_path):
    write_sample(tmp_path / "family", SAMPLES[0])
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "x.toml").write_text("bad")
    (tmp_path / "pyproject.toml").write_text("bad")
    operators, errors = read_folders([tmp_path, tmp_path / "family"])
    assert not errors and [op.name for op in operators] == ["rms_norm"]


def test_words_stand_for_a_condition(tmp_path):
    """What is behind # is said in messages and documentation; the comparison is what is computed."""
    shapes, dtypes = {"x": "*X", "out": "*X"}, {"x": FLOATS, "out": "x"}
    stated = [
        "dim < max(rank(X), 1)  # dim to be  a dimension",
        "0 <= dim#dim to be a dimension",
        "dim < 9",
    ]
    op = read(tmp_path, "f(Tensor x, int dim) -> Tensor", shapes, dtypes, conditions=stated)
    found = metadata(op)["conditions"]
    assert [c["text"] for c in found] == [
        "dim to be a dimension",
        "dim to be a dimension",
        "dim < 9",
    ]
    assert found[0]["expression"] == ("<", "dim", ("max", ("rank", "X"), 1))
    mistake = read(
        tmp_path, "f(Tensor x, int dim) -> Tensor", shapes, dtypes, conditions=["# nothing"]
    )
    assert "unusable expression" in mistake


_LISTS = "lists(Tensor[] x, Tensor(a!)[] out, Tensor rate) -> ()"
_SHAPES = {"x": "[N] *P", "out": "[N] *P", "rate": "expand(1)"}
_DTYPES = {"x": ["float32"], "out": ["float32"], "rate": ["float32"]}


def test_lists_in_place_and_dense_and_numbers(tmp_path):
    layouts = {"x": "dense", "out": "dense"}
    op = read(tmp_path, _LISTS, _SHAPES, _DTYPES, inplace=["x"], numbers=["rate"], layouts=layouts)
    assert [(p.inplace, p.layout, p.number) for p in op.inputs] == [
        (True, "dense", False), (False, "dense", False), (False, "contiguous", True)
    ]  # fmt: skip
    assert metadata(op)["inplace"] == ["x"] and metadata(op)["numbers"] == ["rate"]


@pytest.mark.parametrize(
    "shapes, more, says",
    [
        ({}, {"inplace": ["out"]}, "inplace names the list 'out'"),
        ({"x": "[M] *Q"}, {"inplace": ["x"]}, "inplace names the list 'x'"),
        ({"x": "*P", "out": "*P"}, {"inplace": ["x"]}, "inplace names the list 'x'"),
        ({}, {"inplace": ["rate"]}, "inplace in an operator without results"),
        ({}, {"numbers": ["x"]}, "numbers names 'x'"),
        ({"rate": "L"}, {"numbers": ["rate"]}, "numbers names 'rate'"),
        (
            {"x": "[N] K *P"},
            {"layouts": {"x": "dense", "out": "dense"}},
            "the dense lists 'x' ('[N] K *P') and 'out' ('[N] *P'), expected one shape",
        ),
    ],
)
def test_mistakes_about_lists(tmp_path, shapes, more, says):
    assert says in read(tmp_path, _LISTS, {**_SHAPES, **shapes}, _DTYPES, **more)


def test_a_list_is_not_saved_for_the_gradient(tmp_path):
    schema, name = "sum(Tensor[] x, Tensor y) -> Tensor", {"name": "sum_backward", "saves": ["x"]}
    shapes, dtypes = (
        {"x": "[N] D", "y": "D", "out": "D"},
        {"x": ["float32"], "y": ["float32"], "out": "y"},
    )
    said = read(tmp_path, schema, shapes, dtypes, backward=name)
    assert (
        "[backward] saves 'x', a list of tensors, expected a tensor, input or result (y or out)"
        in said
    ), said
