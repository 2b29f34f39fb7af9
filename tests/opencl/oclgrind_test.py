# SPDX-License-Identifier: Apache-2.0
"""Every kernel in OpenCL C under oclgrind: no data race, no foreign memory; a planted race is found.

oclgrind 21.10 may abort when its process ends, so its log counts and not its exit status. Its compiler must not
optimise: of matmul's vectors of four it then gives the last two elements for the first two (columns 64 and 65 of N=66),
and stops at the instruction `freeze` where uninitialised memory is asked for. Without, that check takes what the host
wrote into buffers for uninitialised; opencl_broken_test.py poisons memory in its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
if not LIBRARY.exists():
    pytest.skip("oclgrind is not installed (Debian: oclgrind)", allow_module_level=True)


@pytest.fixture
def run(tmp_path):
    """A Python process whose OpenCL is oclgrind; what it says, and oclgrind's log."""
    (tmp_path / "vendors").mkdir()
    (tmp_path / "vendors" / "oclgrind.icd").write_text(str(LIBRARY))
    log = tmp_path / "log"

    def run(*words: str, **environment: str) -> tuple[str, str]:
        own = {
            "OCL_ICD_VENDORS": str(tmp_path / "vendors"),
            "ANYOP_OPENCL_DEVICE": "Oclgrind",
            "OCLGRIND_DATA_RACES": "1",
            "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
            "OCLGRIND_LOG": str(log),
            "PYTHONSAFEPATH": "1",
        }
        done = subprocess.run(
            [sys.executable, *words], env=os.environ | own | environment, cwd=ROOT, timeout=900,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout, log.read_text() if log.exists() else ""

    return run


def test_no_kernel_races_or_leaves_its_memory(run):
    pytest.importorskip("torch", reason="torch is not installed")
    words = ("tests/opencl/operators.py", "-k", "test_standard_cases", "-p", "no:cacheprovider")
    small = {"ANYOP_DEVICE_PLATFORM": "opencl", "ANYOP_TEST_SMALL": "1"}
    text, log = run("-m", "pytest", "-q", *words, **small)
    assert "[100%]" in text and "FAILED" not in text, text[-4000:]
    assert log == "", log[:4000]


PLANTED = """
import ctypes
from anyop.conformance.device_table import Device, Image, Launch, Pointer
device = Device("opencl")
text = b'''__kernel void planted(__global int* x, ulong skip) {
  __local int room[64];
  const int t = (int)get_local_id(0);
  room[t] = t;
  %s
  x[%s] = room[63 - t];
}'''
image = Image(ctypes.sizeof(Image), 0, b"planted.cl", text, len(text), b"-DREAL=float -DREAL_IS_DOUBLE=0")
kernel = device.made("find_kernel", 0, device.made("load_image", 0, ctypes.byref(image)), b"planted")
memory = Pointer(device.made("allocate", 0, 256))
values, sizes = (Pointer * 1)(ctypes.addressof(memory)), (ctypes.c_uint32 * 1)()
how = Launch(ctypes.sizeof(Launch), 1, values, sizes, (1, 1, 1), (64, 1, 1), 0)
device.launch_kernel(0, None, kernel, ctypes.byref(how))
device.synchronize_stream(0, None)
print("ran")
"""
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"


@pytest.mark.parametrize(
    ("barrier", "place", "found"),
    [(BARRIER, "t", ""), ("", "t", "data race"), (BARRIER, "t + 1", "Invalid write")],
    ids=["good", "race", "foreign memory"],
)
def test_what_is_planted_is_found(run, barrier, place, found):
    text, log = run("-c", PLANTED % (barrier, place))
    assert "ran" in text, text
    assert (found in log and "planted.cl" in log) if found else log == "", log
