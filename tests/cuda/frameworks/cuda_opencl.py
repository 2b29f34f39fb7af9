# SPDX-License-Identifier: Apache-2.0
"""The device opencl by NVIDIA's OpenCL: the device's checks, the operators' standard tests, a model, 2^31 elements.

NVIDIA's driver brings no file that names its library to an OpenCL loader, so the tests write one. Each runs in a
process of its own, as a process has one device of its type.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DRIVER = "libnvidia-opencl.so.1"


def find_loader() -> str | None:
    """The libOpenCL of the system: another one might not heed OCL_ICD_VENDORS."""
    places = [
        *Path("/usr/lib").glob("*/libOpenCL.so.1"),
        *Path("/usr/lib64").glob("libOpenCL.so.1"),
    ]
    return str(places[0]) if places else ctypes.util.find_library("OpenCL")


LOADER = find_loader()
try:
    ctypes.CDLL(DRIVER)
except OSError as error:
    pytest.skip(f"NVIDIA's OpenCL cannot be opened: {error}", allow_module_level=True)
if LOADER is None:
    pytest.skip("there is no OpenCL loader (Debian: ocl-icd-libopencl1)", allow_module_level=True)


@pytest.fixture
def run(tmp_path):
    """A Python process whose OpenCL is NVIDIA's; its code and all that it says."""
    (tmp_path / "vendors").mkdir()
    (tmp_path / "vendors" / "nvidia.icd").write_text(DRIVER)
    own = {
        "OCL_ICD_VENDORS": str(tmp_path / "vendors"),
        "ANYOP_OPENCL_LIBRARY": LOADER,
        "ANYOP_OPENCL_DEVICE": "NVIDIA",
        "ANYOP_TEST_OPENCL": "NVIDIA",
    }

    def run(*words: str, **more: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-u", *words], env=os.environ | own | more, cwd=ROOT, timeout=600, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


def test_the_devices_checks(run, report):
    code, text = run("-m", "anyop", "device-check", "opencl")
    report.append(f"opencl by NVIDIA: {text.splitlines()[-1]}")
    assert code == 0 and "opencl: 24 of 24 checks passed" in text, text


def test_operators(run):
    pytest.importorskip("torch", reason="torch is not installed")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/opencl/operators.py")
    code, text = run(*words, ANYOP_DEVICE_PLATFORM="opencl")
    assert code == 0 and "[100%]" in text, text[-4000:]


def test_a_model(run):
    test = "examples/sentence_search/on_device_test.py::test_answers_and_vectors_are_the_cpus"
    code, text = run("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", test)
    if "SKIPPED" in text:
        pytest.skip(next(line for line in text.splitlines() if line.startswith("SKIPPED")))
    assert code == 0 and "[100%]" in text, text[-4000:]


LARGE = """
import anyop, numpy as np
from examples.sentence_search.on_device import HOST_TO_DEVICE, NumpyOnDevice
there = NumpyOnDevice("opencl")
device, count = there.device, (1 << 31) + 1000
x, out = there.empty((count,), np.float16), there.empty((count,), np.float16)
device.set_on(0, None, x.memory.address, 0xBC, 2 * count)  # -1.18
places = [0, (1 << 31) - 4, 1 << 31, count - 4]
values = np.array([1, -2, 3, -4], np.float16)
for place in places:
    device.copy_on(0, None, x.memory.address + 2 * place, values.ctypes.data, 8, HOST_TO_DEVICE)
anyop.relu(x, out=out)
device.synchronize_device(0)
for place in [*places, 1 << 30]:
    found = np.empty(4, np.float16)
    device.copy(0, found.ctypes.data, out.memory.address + 2 * place, 8, 2)
    assert found.tolist() == ([1, 0, 3, 0] if place in places else [0] * 4), (place, found)
print("all as expected")
"""


def test_more_than_2_31_elements(run):
    code, text = run("-c", LARGE)
    assert code == 0 and "all as expected" in text, text
