# SPDX-License-Identifier: Apache-2.0
"""Libraries of products on the CPU that do not serve: what they are and what is needed, or that there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy is ml_dtypes'")
sys.path.insert(0, str(Path(__file__).parent))

from fibers import COMPILER

ONEDNN = """
struct version { int major, minor, patch; const char* hash; unsigned cpu, gpu; };
static const struct version is = {%s, "", %d, 0};
const struct version* dnnl_version(void) { return &is; }
"""
PROGRAM = """
import anyop, numpy as np, ml_dtypes
x = np.ones((100, 40), ml_dtypes.bfloat16)
for _ in range(2):
    try:
        anyop.linear(x, x)
    except ValueError as error:
        print(error)
"""


def run(code: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize(
    ("version", "runtime", "words"),
    [
        ("2, 6, 3", 2, "it is oneDNN 2.6.3 with CPU runtime 2"),
        ("3, 8, 1", 4, "it is oneDNN 3.8.1 with CPU runtime 4"),
        ("3, 1, 0", 2, "it is oneDNN 3.1.0 with CPU runtime 2"),
    ],
)
def test_both_versions_are_named(tmp_path, version, runtime, words):
    """Of an older oneDNN, of one on another runtime, of one without a function."""
    source, library = tmp_path / "dnnl.c", tmp_path / "libdnnl.so.3"
    source.write_text(ONEDNN % (version, runtime))
    command = [COMPILER, "-x", "c", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    said = run(PROGRAM, ANYOP_DNNL=str(library)).splitlines()
    needed = f"{words}, and 3.2 or a newer 3 with OpenMP (2) is needed"
    assert len(said) == 2
    for line in said:
        assert line.startswith(f"linear: ANYOP_DNNL is {library}, expected the path"), line
        assert needed in line, line
        assert ("it has no function dnnl_" in line) is version.startswith("3, 1"), line


def test_without_openblas(tmp_path):
    """Where neither it nor another kernel is found: the command that installs it, and where it was looked for."""
    package = Path(anyop.__file__).parent
    shutil.copytree(package, tmp_path / "a" / "b" / "anyop", ignore=shutil.ignore_patterns("*.pyc"))
    text = run(
        """
import numpy as np, anyop
for dtype in ("float32", "float64", "float16"):
    for _ in range(2):
        x = np.ones((100, 40), dtype)
        try:
            print(anyop.linear(x, x).shape)
        except NotImplementedError as error:
            print(error)
assert (anyop.relu(np.ones(3)) == 1).all()
""",
        PYTHONPATH=os.pathsep.join([str(tmp_path / "a" / "b"), *filter(None, sys.path)]),
        ANYOP_BLAS="",
        LD_LIBRARY_PATH="",
    )
    lines = text.splitlines()
    if lines[0] == "(100, 100)":
        pytest.skip("the loader finds an OpenBLAS of this name elsewhere")
    assert len(lines) == 6
    for line in lines:
        assert line.startswith("linear: "), line
        assert "pip install scipy-openblas64" in line and "ANYOP_BLAS" in line, line
        assert f"Looked for {tmp_path}" in line, line
