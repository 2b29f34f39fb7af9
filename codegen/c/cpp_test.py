# SPDX-License-Identifier: Apache-2.0
"""The typed C++ functions compile, and hand the C ABI exactly what they were called with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ..conftest import compile_c

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def program(generated, tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    folder = tmp_path_factory.mktemp("cpp")
    flags = ["-std=c++17", "-g", "-fsanitize=address,undefined", "-I", generated]
    sources = [HERE / "fake_library.cc", HERE / "typed_calls.cc"]
    compile_c(*flags, *sources, "-o", folder / "program", compiler="g++")
    return folder / "program"


def test_calls(program):
    run = subprocess.run([program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    expected = (HERE / "typed_calls.txt").read_text(encoding="utf-8").splitlines()[2:]
    assert len(expected) > 40 and run.stdout.splitlines() == expected
