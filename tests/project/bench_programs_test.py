# SPDX-License-Identifier: Apache-2.0
"""Programs of bench/, and checks of some for CUDA, run to their end in a copy of the tree, where they write results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import FULL

ROOT = Path(__file__).parents[2]
SHORT = ["--rounds", "1"]
PROGRAMS = {
    "aten_call": SHORT,
    "call": SHORT,
    "convolutions": [*SHORT, "--dtypes", "float32"],
    "cuda_batch_norm": ["--check"],
    "cuda_experts": ["--check"],
    "device_call": [*SHORT, "--size", "4"],
    "generate": [*SHORT, "--size", "tiny", "--context", "8", "--tokens", "4", "--replaced"],
    "jax_call": SHORT,
    "kernel_table": [],
    "kernels": ["--seconds", "0.001", "--shapes", "1x4096"],
    "model": [*SHORT, "--texts", "2", "--tokens", "8"],
    "paddle_call": SHORT,
    "products": [*SHORT, "--only", "linear_backward", "--dtypes", "float32"],
    "row_call": [*SHORT, "--devices", "host,host"],
    "torch_call": SHORT,
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    for name in ("bench", "codegen", "examples", "include", "ops", "src", "tests/abi"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.skipif(not FULL, reason="times for some minutes: make test-full")
def test_it_runs(name, tree):
    (program,) = tree.glob(f"bench/*/{name}.py")
    command = [sys.executable, program, *PROGRAMS[name]]
    run = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-500:] + run.stderr[-2000:]
    assert run.stdout.strip()
