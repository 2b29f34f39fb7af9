# SPDX-License-Identifier: Apache-2.0
"""The committed type stubs say what the schemas say."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import anyop

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "python" / "anyop" / "_functions.pyi"


def test_operators_stubs_are_what_codegen_writes(tmp_path):
    words = [
        sys.executable,
        "-m",
        "codegen",
        "--what",
        "stubs",
        "--out",
        str(tmp_path),
        str(ROOT / "ops"),
    ]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "anyop.pyi").read_text() == STUBS.read_text(), "make stubs"


def test_every_public_name_has_a_stub_with_its_arguments():
    functions = {}
    for path in (STUBS, STUBS.with_name("__init__.pyi")):
        tree = ast.parse(path.read_text())
        functions |= {
            node.name: node
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
    for name in set(anyop.__all__) - {"jit", "ops"}:
        stub = functions[name]
        if isinstance(stub, ast.FunctionDef) and name in anyop.list_ops("anyop"):
            arguments = stub.args
            written = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
            assert written == list(inspect.signature(getattr(anyop, name)).parameters), name
