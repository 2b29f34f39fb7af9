# SPDX-License-Identifier: Apache-2.0
"""Handles from C++: the program of docs/cpp.md, as it stands there, under sanitizers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import anyop
import pytest

PACKAGE = Path(anyop.__file__).parent


def test_lists_that_come_again(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    root = next(up for up in Path(__file__).resolve().parents if (up / "docs" / "cpp.md").exists())
    page = (root / "docs" / "cpp.md").read_text(encoding="utf-8")
    section = page.split("## Lists that come again\n")[1].split("\n## ")[0]
    (program,) = re.findall(r"```cpp\n(.*?)```", section, re.DOTALL)
    (tmp_path / "program.cc").write_text(program, encoding="utf-8")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    library = [f"-L{PACKAGE / 'lib'}", "-lanyop", f"-Wl,-rpath,{PACKAGE / 'lib'}"]
    command = ["g++", *flags, f"-I{PACKAGE / 'include'}", "program.cc", *library, "-o", "program"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[:4000]
    run = subprocess.run(
        [tmp_path / "program"], env={"LD_PRELOAD": ""}, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[:4000]
    assert run.stdout.splitlines() == re.findall(r"// prints (.*)", program)
