# SPDX-License-Identifier: Apache-2.0
"""The sample operators, written, generated and compiled once for all tests of this folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .__main__ import main
from .operators.folders import read_folders
from .operators.operator_file import Operator
from .sample_operators import SAMPLES, write_sample

INCLUDE = Path(__file__).resolve().parent.parent / "include"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def compile_c(*arguments: object, compiler: str = "gcc") -> None:
    """Runs the compiler; a message of its own fails the test."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    command = [compiler, *WARNINGS, "-I", str(INCLUDE), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the samples' operator files."""
    folder = tmp_path_factory.mktemp("ops")
    for data in SAMPLES:
        write_sample(folder / data["schema"][0], data)
    return folder


@pytest.fixture(scope="session")
def operators(samples: Path) -> dict[str, Operator]:
    """The samples, read."""
    found, errors = read_folders([samples])
    assert not errors
    return {op.name: op for op in found}


@pytest.fixture(scope="session")
def generated(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated files."""
    out = tmp_path_factory.mktemp("generated")
    assert main(["--out", str(out), "--library", "samples", str(samples)]) == 0
    return out
