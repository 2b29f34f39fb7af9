# SPDX-License-Identifier: Apache-2.0
"""The code on docs/aten.md runs as it stands and its counts are those of torch 2.13."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import anyop  # noqa: E402
from anyop.aten import _table  # noqa: E402
from anyop.command import main  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "aten.md"


def test_code_of_the_page(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        printed = re.findall(r"^# (.*)$", block, re.M)
        assert capsys.readouterr().out.splitlines() == printed


def test_cpp_of_the_page(tmp_path):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (program,) = re.findall(r"^```cpp\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    (tmp_path / "page.cc").write_text(program)
    assert main(["aten", "header", "--out", str(tmp_path)]) == 0
    library = os.path.join(os.path.dirname(anyop.include_dir()), "lib")
    words = [compiler, "-std=c++17", "page.cc", "-o", "page", f"-I{tmp_path}"]
    words += [f"-I{anyop.include_dir()}", f"-L{library}", "-lanyop", f"-Wl,-rpath,{library}"]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run(["./page"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.split() == re.findall(r"// prints (.*)", program)


def test_counts_of_the_page():
    overloads = _table.metadata()["overloads"].values()
    version = torch.__version__.partition("+")[0]
    row = re.search(rf"^\| {re.escape(version)} \|(.*)$", PAGE.read_text(), re.M)
    if row is None:
        pytest.skip(f"the page has no row for torch {version}")
    callables = sum(each["callable"] for each in overloads)
    by_shim = callables - sum("needs_glue" in each for each in overloads)
    expected = [f"{count:,}" for count in (len(overloads), callables, by_shim)]
    assert [cell.strip() for cell in row[1].split("|")[:3]] == expected
