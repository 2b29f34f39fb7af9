# SPDX-License-Identifier: Apache-2.0
"""The library of tests/third_party, built by CMake once for all the processes of a run of tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyop
import pytest

FOLDER = Path(__file__).parents[1] / "third_party"


def odd_library(factory: pytest.TempPathFactory) -> Path:
    """libodd.so, of the process that comes first; skips where there is no CMake."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if not shutil.which("cmake", path=environment["PATH"]):
        pytest.skip("cmake is not installed")
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "third_party"
    folder.mkdir(exist_ok=True)
    configure = ["cmake", "-S", str(FOLDER), "-B", str(folder), f"-Danyop_DIR={anyop.cmake_dir()}"]
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            [*configure, f"-DPython_EXECUTABLE={sys.executable}"],
            ["cmake", "--build", str(folder)],
        ):
            if (folder / "built").exists():
                break
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        (folder / "built").touch()
    return folder / "libodd.so"
