# SPDX-License-Identifier: Apache-2.0
"""The type stubs say what the schemas say: the committed ones of operators, those of ATen that the build makes."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

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


@pytest.fixture(scope="module")
def aten_stubs(tmp_path_factory):
    pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path_factory.mktemp("stubs") / "aten.pyi"
    command = [sys.executable, "-m", "codegen.aten", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return path


def test_aten_has_a_stub_of_every_operator(aten_stubs):
    text = aten_stubs.read_text()
    assert set(anyop.aten.__all__) < {
        node.name for node in ast.parse(text).body if hasattr(node, "name")
    }
    names = re.findall(r"(?m)^(\w+): _\w+_op$", text)
    assert len(names) > 1000 and {*names} <= {*dir(anyop.aten)}


def test_the_package_has_the_stubs_of_its_torch(aten_stubs):
    built = Path(anyop.__file__).parent / "aten" / "__init__.pyi"
    if not built.exists():
        pytest.skip("anyop is a build folder's, or was built without torch")
    written = aten_stubs.read_text()
    if built.read_text().partition("\n")[0] != written.partition("\n")[0]:
        pytest.skip("anyop was built with another torch")
    assert built.read_text() == written


CALLS = """
import aten
import numpy as np

x = np.ones(3)
y: np.ndarray = aten.add(x, 2, alpha=1)
aten.add(x, 2, alpha="1")
aten.relu(2)
"""


def test_mypy_takes_the_stubs_of_aten_and_finds_wrong_calls(aten_stubs):
    """Strictly, but that ATen's own overloads overlap."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    calls = aten_stubs.with_name("calls.py")
    calls.write_text(CALLS)
    strict = ["--strict", "--disable-error-code=overload-cannot-match", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, "--config-file=", "--cache-dir", aten_stubs.parent / "cache", calls],
        cwd=aten_stubs.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition(": error: ")[0] for line in lines] == ["calls.py:7", "calls.py:8"], done
