# SPDX-License-Identifier: Apache-2.0
"""A device of OpenCL that lacks something, finds no memory, is lost or holds poison: PoCL behind a false libOpenCL."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler"),
    pytest.mark.skipif(
        not Path("/etc/OpenCL/vendors/pocl.icd").exists(),
        reason="PoCL is not installed (Debian: pocl-opencl-icd)",
    ),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("false") / "libfalse_opencl.so"
    words = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    words += [str(HERE / "false_opencl.c"), "-o", str(made), "-ldl"]
    words += ["-Wl,--no-as-needed", "-l:libOpenCL.so.1"]
    subprocess.run(words, check=True, timeout=300)
    return made


@pytest.fixture
def run(library, tmp_path):
    """A Python process on the broken device; its code and all that it says."""

    def run(code: str | tuple[str, ...], broken: str, **more: str) -> tuple[int, str]:
        own = {
            "ANYOP_FALSE": broken,
            "ANYOP_OPENCL_LIBRARY": str(library),
            "ANYOP_OPENCL_DEVICE": "Portable Computing Language",
            "PYTHONSAFEPATH": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        done = subprocess.run(
            [sys.executable, *(("-c", code) if isinstance(code, str) else code)], text=True, timeout=300,
            env=os.environ | own | more, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


RELU = """
import anyop, numpy as np
from anyop.conformance.device_array import back, there
from anyop.conformance.device_table import Device, use
device = Device("opencl")
use(device)
def tried(function, *arguments, **more):
    try:
        return function(*arguments, **more)
    except Exception as error:
        print(type(error).__name__, getattr(error, "text", None) or error)
def once(dtype):
    x = np.arange(-4, 4).astype(dtype)
    out = there(device, np.full_like(x, 9))
    anyop.relu(there(device, x), out=out)
    print(dtype, (back(device, out) == np.maximum(x, 0)).all())
"""


def test_float64_that_the_device_lacks(run):
    code, text = run(RELU + "for t in ('float64', 'float32'): tried(once, t)", "double=0")
    refused, works = text.splitlines()
    assert code == 0 and works == "float32 True", text
    assert refused.startswith("NotImplementedError relu: opencl: "), text
    assert refused.endswith(" has no float64"), text


def test_a_buffer_beyond_the_largest(run):
    make = "tried(device.made, 'allocate', 0, 4097)\nprint(bool(device.made('allocate', 0, 4096)))"
    code, text = run(RELU + make, "largest=4096")
    assert code == 0 and "4097 bytes, and the largest buffer of " in text, text
    assert text.endswith(" has 4096\nTrue\n"), text


def test_no_memory(run):
    code, text = run(RELU + "tried(once, 'float32')\nonce('float32')", "memory=2")
    assert code == 0 and "CL_MEM_OBJECT_ALLOCATION_FAILURE (-4) while allocating memory" in text, (
        text
    )
    assert text.endswith("float32 True\n"), text


def test_local_memory_that_the_device_lacks(run):
    softmax = """
x = np.zeros((2, 4), np.float32)
tried(anyop.softmax, there(device, x), -1, out=there(device, x))
"""
    code, text = run(RELU + softmax, "local=8")
    assert code == 0 and text.startswith("ValueError softmax: opencl: "), text
    assert " bytes of local memory, " in text and text.endswith(" has 8\n"), text


LOST = """
for _ in range(3):
    tried(once, "float32")
tried(device.synchronize_device, 0)
tried(device.made, "create_event", 0)
print("to the end")
"""


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 8, 11, 14])
def test_a_device_lost_in_the_middle(run, calls):
    """Each call says so, none gives wrong numbers, and the process ends."""
    code, text = run(RELU + LOST, f"lost={calls}")
    *told, end = text.splitlines()
    assert code == 0 and end == "to the end", text
    wrong = [line for line in told if line != "float32 True"]
    assert len(told) >= 4 and len(wrong) >= 2, text
    for line in wrong:
        assert "CL_INVALID_COMMAND_QUEUE (-36) while " in line, text
        assert line.split()[0] in ("Refused", "DeviceError"), text


# Floats that are no numbers, and large ones; as integers, -1 and a large one.
POISONS = (0xFFFFFFFF, 0x7F000001)
PLANTED = """
import ctypes, sys
from anyop.conformance.device_table import Device, Image, Launch, Pointer
device = Device("opencl")
text = b'''__kernel void planted(__global uint* x, ulong skip) {
  __local uint room[64];
  const int t = (int)get_local_id(0);
  if (%s) room[t] = t;
  x[t] = room[t] + x[t + 64];
}'''
image = Image(ctypes.sizeof(Image), 0, b"planted.cl", text, len(text), b"-DREAL=float -DREAL_IS_DOUBLE=0")
kernel = device.made("find_kernel", 0, device.made("load_image", 0, ctypes.byref(image)), b"planted")
memory = Pointer(device.made("allocate", 0, 512))
values, sizes = (Pointer * 1)(ctypes.addressof(memory)), (ctypes.c_uint32 * 1)()
how = Launch(ctypes.sizeof(Launch), 1, values, sizes, (1, 1, 1), (64, 1, 1), 0)
device.launch_kernel(0, None, kernel, ctypes.byref(how))
back = (ctypes.c_uint32 * 128)()
device.copy(0, ctypes.addressof(back), memory.value, 512, 2)
print([back[t] - (back[64] if %d else 0) for t in (0, 63)], back[64])
"""


@pytest.mark.parametrize("poison", POISONS)
def test_poison_is_read_where_nothing_was_written(run, poison):
    code, text = run(PLANTED % ("t < 0", 1), f"poison={poison}", POCL_MAX_PTHREAD_COUNT="1")
    twice = (2 * poison) % 2**32 - poison
    assert (code, text) == (0, f"[{twice}, {twice}] {poison}\n"), text


@pytest.mark.parametrize("poison", POISONS)
def test_no_kernel_reads_what_nothing_wrote(run, poison):
    """Results are right whatever lies in new buffers and in local memory: the standard tests, in one thread."""
    pytest.importorskip("torch", reason="torch is not installed")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "operators.py"))
    more = {
        "ANYOP_DEVICE_PLATFORM": "opencl",
        "POCL_MAX_PTHREAD_COUNT": "1",
        "ANYOP_TEST_SMALL": "1",
    }
    code, text = run(words, f"poison={poison}", **more)
    assert code == 0 and "[100%]" in text, text[-4000:]
