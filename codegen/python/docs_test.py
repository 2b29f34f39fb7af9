# SPDX-License-Identifier: Apache-2.0
"""Docstrings and stubs: inspect reads the signature, rows fit, Python parses the stubs."""

from __future__ import annotations

import ast
import ctypes
import inspect
import sys
from typing import Any

import pytest

from ..__main__ import main
from ..sample_operators import SAMPLES, write_sample
from .docs import docstring, reference_page


class MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("method", ctypes.CFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def builtin_function(op) -> Any:
    """A builtin function of this docstring, as the binding makes it."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.py_object, ctypes.py_object],
    )
    method = MethodDef._fields_[1][1](lambda module, arguments: None)
    definition = MethodDef(op.name.encode(), method, 1, docstring(op).encode())
    KEPT.append(definition)
    return make(ctypes.addressof(definition), sys.modules[__name__], "anyop")


KEPT: list[MethodDef] = []


def test_signatures(operators):
    compared = 0
    for op in operators.values():
        function = builtin_function(op)
        parameters = inspect.signature(function).parameters
        assert list(parameters) == [param.name for param in op.params], op.name
        assert function.__doc__ == docstring(op).split("--\n\n", 1)[1]
        for param in op.params:
            found = parameters[param.name]
            keyword = param.keyword_only or (
                param.output and any(p.keyword_only for p in op.inputs)
            )
            assert found.kind == (found.KEYWORD_ONLY if keyword else found.POSITIONAL_OR_KEYWORD)
            if param.output:
                assert found.default is None
            elif param.has_default:
                assert found.default == param.default and type(found.default) is type(param.default)
            else:
                assert found.default is found.empty
            compared += 1
    assert compared > 100


def test_docstring_of_rms_norm(operators):
    text = docstring(operators["rms_norm"])
    assert text.startswith(
        "rms_norm($module, x, weight, eps=1e-06, out=None)\n--\n\nThe operator rms_norm.\n\n"
    )
    for row in (
        "x:        (*, D) float32, float16 or bfloat16, contiguous; something.",
        "weight:   (D,) dtype of x, contiguous; something.",
        "eps:      float, default 1e-06; something.",
        "Returns   (*, D), new unless given, dtype of x. A result may be exactly x.",
        "Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without "
        "a kernel.",
    ):
        assert f"\n{row}\n" in text, text


def test_streams_are_of_devices(operators):
    """A CPU has none."""
    for name, has_device in (("rms_norm", False), ("matmul", True)):
        text = " ".join(docstring(operators[name]).split())
        assert ("On a device it runs on the current stream, and never waits." in text) == has_device
        assert ("stream" in text) == has_device


def test_rows_of_rarer_forms(operators):
    adam, attention = docstring(operators["multi_tensor_adam"]), docstring(operators["attention"])
    assert "list of N tensors (*P,) float32 or bfloat16, contiguous, written; something." in adam
    assert (
        "bool[3], default [True, True, True]; something." in adam
        and "None; params, exp_avgs and" in adam
    )
    assert (
        "broadcastable to (B, H, S, T) dtype of q or bool, contiguous, or None; something."
        in attention
    )
    assert "Requires  G > 0; H % G == 0." in attention
    assert "broadcast(*X, *Y), M, N" in docstring(operators["matmul"])
    assert "made only when wanted" in docstring(operators["dropout_backward"])
    assert "dtype dtype, or that of x when None" in docstring(operators["softmax_as"])


def test_rows_fit(operators):
    for op in operators.values():
        long = [row for row in docstring(op).split("\n")[3:] if len(row) > 100]
        assert not long, long


def test_stubs(samples, tmp_path):
    assert main(["--out", str(tmp_path), "--what", "stubs", str(samples)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"anyop.pyi", "acme.pyi"}
    functions = {}
    for path in tmp_path.iterdir():
        tree = ast.parse(path.read_text())
        functions |= {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert len(functions) == len(SAMPLES)
    topk = functions["topk"]
    assert (
        ast.unparse(topk.returns) == "tuple[Array, Array]"
        and ast.unparse(topk.args.args[1]) == "k: int"
    )
    assert [a.arg for a in topk.args.args[-2:]] == ["values", "indices"]
    adam = {
        a.arg: ast.unparse(a.annotation) for a in functions["multi_tensor_adam"].args.kwonlyargs
    }
    assert adam["clip"] == "float | None" and adam["steps"] == "Sequence[int] | None"
    assert ast.unparse(functions["multi_tensor_adam"].returns) == "None"
    assert ast.unparse(functions["index_put"].args.args[1].annotation) == "Sequence[Array | None]"
    assert ast.unparse(functions["dropout_backward"].returns) == "tuple[Array | None, Array | None]"
    assert ast.get_docstring(functions["rms_norm"]).endswith(
        'A "quoted" \\ backslash, ümlaut and ??/ trigraph'
    )


def test_reference_page(samples, operators, tmp_path):
    assert main(["--out", str(tmp_path), "--what", "docs", str(samples)]) == 0
    page = (tmp_path / "operators_reference.md").read_text()
    for op in operators.values():
        assert f"\n## {op.full_name}\n" in page and op.schema in page
        assert f"](#{op.full_name.replace('.', '')})" in page
    assert page.count("```") == 4 * len(SAMPLES)
    assert page == reference_page(
        sorted(operators.values(), key=lambda op: (op.namespace, op.name))
    )


@pytest.mark.parametrize("text", ['a """ b', "a \\ b", "tail \\", 'tail "'])
def test_stub_texts_are_escaped(text, tmp_path):
    write_sample(tmp_path, {**SAMPLES[0], "brief": text, "source": text})
    assert main(["--out", str(tmp_path), "--what", "stubs", str(tmp_path)]) == 0
    (function,) = [
        n
        for n in ast.parse((tmp_path / "anyop.pyi").read_text()).body
        if isinstance(n, ast.FunctionDef)
    ]
    assert ast.get_docstring(function).startswith(text) and ast.get_docstring(function).endswith(
        text
    )


def test_kernels_that_no_gpu_has_tested_are_marked(operators):
    page = reference_page(list(operators.values()), ["anyop.matmul"])
    assert "Kernels: cpu, cuda (not tested on a GPU as it is)" in page
    assert "not tested" not in reference_page(list(operators.values()))
