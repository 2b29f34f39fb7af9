# SPDX-License-Identifier: Apache-2.0
"""A file of a schema and shapes is a whole operator; anyop's own files state all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ..operators.folders import find_files, read_folders
from ..operators.operator_file import read_operator
from . import defaults
from .dtypes import FLOATING
from .schema import parse_schema
from .source import tomllib

ROOT = Path(__file__).resolve().parents[2]
SHORT = 'schema = "acme::scale({}) -> {}"\nshapes = {{ {} }}\n'


def write(folder: Path, inputs="Tensor x, float factor", results="Tensor", more="", beside=".cc"):
    """The short file of acme.scale; `* ` for every tensor."""
    signature = parse_schema(f"scale({inputs}) -> {results}")
    params = signature.inputs + signature.outputs
    shapes = ", ".join(f'{param.name} = "*"' for param in params if param.is_tensor)
    text = SHORT.format(inputs, results, shapes)
    path = folder / "scale.toml"
    path.write_text(text + more)
    for suffix in beside.split():
        (folder / f"scale{suffix}").touch()
    return path


def test_a_schema_and_shapes_are_enough(tmp_path):
    op = read_operator(write(tmp_path, beside=".cc .cu .hip .mlu"))
    assert op.brief == "The operator scale of acme." and op.math == op.source == ""
    assert [(k.backend, k.files[0].name, k.function) for k in op.kernels] == [
        ("cpu", "scale.cc", "acme_scale_cpu"),
        ("cuda", "scale.cu", "acme_scale_cuda"),
        ("hip", "scale.hip", "acme_scale_hip"),
        ("mlu", "scale.mlu", "acme_scale_mlu"),
    ]
    assert [param.possible for param in op.params] == [("float32",), (), ("float32",)]
    assert op.tolerance == {"float32": pytest.approx(16 * 2**-23)}


@pytest.mark.parametrize(
    "inputs, results, more, expected",
    [
        ("Tensor x, Tensor y", "Tensor", 'dtypes = { x = ["float16"] }', "float16 float16 float16"),
        ("Tensor x, Tensor y", "Tensor", 'dtypes = { y = ["int8"] }', "float32 int8 float32"),
        ("Tensor x", "Tensor", 'dtypes = { out = ["int64"] }', "float32 int64"),
        ("Tensor? m, Tensor x", "Tensor", 'dtypes = { x = ["int8"] }', "float32 int8 int8"),
        ("Tensor x", "(Tensor a, Tensor? b)", 'dtypes.x = ["int8"]', "int8 int8 int8"),
    ],
)
def test_dtypes(inputs, results, more, expected, tmp_path):
    op = read_operator(write(tmp_path, inputs, results, more))
    assert " ".join(param.possible[0] for param in op.params if param.is_tensor) == expected


@pytest.mark.parametrize(
    "inputs, shapes",
    [
        ("Tensor[] xs, Tensor y", {"xs": "[N] *P", "y": "*", "out": "*"}),
        ("Tensor? m, int n", {"m": "*", "out": "n"}),
        ("int n", {"out": "n"}),
    ],
)
def test_what_no_argument_decides_is_float32(inputs, shapes, tmp_path):
    path = write(tmp_path, inputs)
    entries = ", ".join(f'{name} = "{shape}"' for name, shape in shapes.items())
    path.write_text(f'schema = "acme::scale({inputs}) -> Tensor"\nshapes = {{ {entries} }}\n')
    params = read_operator(path).params
    assert {p.name: p.possible for p in params if p.is_tensor} == dict.fromkeys(
        shapes, ("float32",)
    )


def test_every_floating_result_has_a_tolerance(tmp_path):
    more = 'dtypes = { x = ["bfloat16"], b = ["float64"] }\ntolerance = { bfloat16 = 1e-3 }\n'
    op = read_operator(write(tmp_path, "Tensor x", "(Tensor a, Tensor b)", more))
    assert op.tolerance == {"bfloat16": 1e-3, "float64": 16 * 2.0**-52}
    op = read_operator(write(tmp_path, "Tensor(a!) x", "()", 'dtypes.x = ["float16"]\n'))
    assert op.tolerance == {"float16": 2 * 2.0**-10}


def test_tolerances_are_steps_of_the_types():
    assert set(defaults._BITS) == set(FLOATING)
    for name in ("float16", "float32", "float64"):
        steps = 2 if name == "float16" else 16
        assert defaults.tolerance(name) == steps * np.finfo(name).eps
    types = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        assert defaults.tolerance(name) == 2 * float(types.finfo(name).eps)


def test_no_kernel_is_an_error_that_says_so(tmp_path):
    path = write(tmp_path, beside="")
    (error,) = read_folders([tmp_path])[1]
    assert str(error) == (
        f"{path}:1: no section [kernels], and no scale.cc, scale.cu, scale.hip, scale.mlu or "
        "scale_triton.py beside the file, expected a kernel; write scale.cc, name other files in [kernels], "
        "or write [kernels] alone for none"
    )
    path.write_text(path.read_text() + "[kernels]\n")
    assert read_operator(path).kernels == []


def test_only_named_kernels_count_where_some_are_named(tmp_path):
    op = read_operator(write(tmp_path, more='[kernels]\ncpu = "scale.cc"', beside=".cc .cu"))
    assert [kernel.backend for kernel in op.kernels] == ["cpu"]


OWN = find_files([ROOT / "ops", ROOT / "examples"])
# Shows how little a kernel needs that is moved over: docs/porting.md.
SHORT_ON_PURPOSE = ROOT / "examples" / "from_pybind11"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_own_operators_leave_nothing_to_defaults(path):
    if path.is_relative_to(SHORT_ON_PURPOSE):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 12
        return
    op, data = read_operator(path), tomllib.loads(path.read_text(encoding="utf-8"))
    assert {"brief", "math", "source", "kernels"} <= set(data)
    assert [param.name for param in op.inputs if not param.about] == []
    tensors = {param.name for param in op.params if param.is_tensor}
    assert tensors <= set(data["dtypes"])
    written = set(defaults.compared(op.params))
    assert written <= set(data.get("tolerance", {})), "each with its reason"


def test_own_operators_are_found():
    assert len(OWN) > 30
