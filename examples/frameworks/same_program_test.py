# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/frameworks.md are these files, and print the same numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import anyop
import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
LANGUAGES = {".py": "python", ".cc": "cpp", ".c": "c"}
PYTHON = ["numpy", "cupy", "torch", "jax", "paddle"]
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


SAME_PROGRAM = pytest.mark.drawn(5, together="examples/frameworks")


def run(*command: object) -> str:
    words = [str(word) for word in command]
    found = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def expected() -> str:
    """The same in float64, without anyop."""
    x = np.arange(8.0).reshape(2, 4) + 0.5
    y = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * [1, 1, 2, 2]
    return "".join(" ".join(f"{value:.4f}" for value in row) + "\n" for row in y)


@SAME_PROGRAM
@pytest.mark.parametrize("framework", PYTHON)
def test_program_prints_the_numbers(framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    assert run(sys.executable, HERE / f"{framework}_rows.py") == expected()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    build = tmp_path_factory.mktemp("build")
    found = f"-Danyop_DIR={anyop.cmake_dir()}"
    run("cmake", "-G", "Ninja", "-S", HERE, "-B", build, found, "-DCMAKE_CXX_FLAGS=-Wall -Werror")
    run("cmake", "--build", build)
    return build


@SAME_PROGRAM
@pytest.mark.parametrize("program", ["rows", "rows_in_c"])
def test_compiled_program_prints_the_numbers(compiled, program):
    assert run(compiled / program) == expected()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.S | re.M)


def test_page_shows_the_programs_and_what_they_print():
    files = [f"{name}_rows.py" for name in PYTHON] + ["rows.cc", "rows_in_c.c"]
    programs = {path.name for path in HERE.iterdir() if path.stem.endswith(("rows", "rows_in_c"))}
    assert programs == set(files)
    for name in files:
        # Without the licence, and the sentence that says what the file does.
        program = (HERE / name).read_text().split("\n", 2)[2].lstrip("\n")
        assert program in blocks("frameworks.md", LANGUAGES[Path(name).suffix]), name
    assert blocks("frameworks.md", "text") == [expected()]


@SAME_PROGRAM
def test_code_of_the_page_on_cpp_runs(tmp_path):
    program, *_ = blocks(
        "cpp.md", "cpp"
    )  # the second one needs a library: tests/routes/outside_operator_test.py
    (tmp_path / "page.cc").write_text(program)
    package = Path(anyop.__file__).parent
    flags = [f"-I{package}/include", f"-L{package}/lib", "-lanyop", f"-Wl,-rpath,{package}/lib"]
    run(
        "c++",
        "-std=c++17",
        "-Wall",
        "-Werror",
        tmp_path / "page.cc",
        "-o",
        tmp_path / "page",
        *flags,
    )
    assert run(tmp_path / "page") == "".join(
        f"{line}\n" for line in re.findall(r"// prints (.*)$", program, re.M)
    )
