# SPDX-License-Identifier: Apache-2.0
"""-DANYOP_PREBUILT_GLUE=ON puts the glues and the device into the package: they need no compiler and no cache there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if os.environ.get("ANYOP_TEST_FULL") != "1":
    pytest.skip("builds all of anyop, some minutes: make test-full", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch, numpy as np, anyop
from anyop.native import device
from anyop.native.glues import aten_glue, torch_glue
assert torch_glue.load() and anyop.aten.add(np.ones(2), 1.5).tolist() == [2.5, 2.5]
import anyop.torch.device
assert torch.ones(2, device="anyop").sum().item() == 2
print(torch_glue.path, aten_glue.find_loaded(), device.find())
"""


def test_the_glues_and_the_device_come_with_the_package(tmp_path):
    build = tmp_path / "build"
    options = ["-DANYOP_PREBUILT_GLUE=ON", "-DANYOP_WITH_CUDA=OFF", "-G", "Ninja"]
    options.append(f"-DPython_EXECUTABLE={sys.executable}")
    subprocess.run(["cmake", "-S", ROOT, "-B", build, *options], check=True)
    subprocess.run(["cmake", "--build", build, "-j2"], check=True)
    places = {"PYTHONPATH": build / "python", "ANYOP_CACHE_DIR": tmp_path / "cache"}
    environment = {**os.environ, **{k: str(v) for k, v in places.items()}, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = [Path(path) for path in done.stdout.split()]
    assert [path.parent for path in found] == [build / "python" / "anyop" / "lib"] * 3
