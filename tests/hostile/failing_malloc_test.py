# SPDX-License-Identifier: Apache-2.0
"""No memory at each allocation of anyop's own, in every entry point: MemoryError or right, and right afterwards."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
    pytest.mark.skipif(
        any(name in os.environ.get("LD_PRELOAD", "") for name in ("libasan", "libtsan")),
        reason="the sanitizer's own allocator stands before the failing one",
    ),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("failing") / "failing_malloc.so")
    source = os.path.join(HERE, "failing_malloc.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.mark.parametrize(
    "what", ["import", "numpy", "numpy torch", "tvm_ffi", "jax", "paddle", "c_abi"]
)
@pytest.mark.drawn(4)
def test_every_allocation_fails_once(library, what):
    framework = what.split()[-1]
    if (
        framework in ("torch", "tvm_ffi", "jax", "paddle")
        and importlib.util.find_spec(framework) is None
    ):
        pytest.skip(f"{framework} is not installed")
    before = os.environ.get("LD_PRELOAD", "")  # a sanitizer's runtime, which goes first
    run = subprocess.run(
        [sys.executable, os.path.join(HERE, "failing_malloc_program.py"), *what.split()],
        env={**os.environ, "LD_PRELOAD": f"{before} {library}".strip()},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert run.returncode == 0, f"{run.returncode}: {run.stdout}{run.stderr[-3000:]}"
    counts = [int(line.rpartition(" ")[2]) for line in run.stdout.splitlines()]
    assert (
        what == "jax" or sum(counts) > 0
    )  # the library found what to fail; XLA owns a call of JAX
