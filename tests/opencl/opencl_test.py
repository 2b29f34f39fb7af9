# SPDX-License-Identifier: Apache-2.0
"""The device opencl on PoCL: the device's checks, the operators' standard tests, and what bad input is told.

Each in a process of its own, as a process has one device of its type.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from anyop.conformance.device_table import Device, Image, Launch, Pointer, Refused

ROOT = Path(__file__).parents[2]
POCL = {"ANYOP_OPENCL_DEVICE": "Portable Computing Language"}
if not Path("/etc/OpenCL/vendors/pocl.icd").exists():
    pytest.skip("PoCL is not installed (Debian: pocl-opencl-icd)", allow_module_level=True)


@pytest.fixture
def run(tmp_path):
    """A Python process; its code and all that it says."""

    def run(*words: str, **environment: str) -> tuple[int, str]:
        safe = {"PYTHONSAFEPATH": "1", "ANYOP_CACHE_DIR": str(tmp_path / "cache")}
        safe |= {"POCL_CACHE_DIR": str(tmp_path / "pocl"), "PYTHONFAULTHANDLER": "1"}
        done = subprocess.run(
            [sys.executable, *words], env=os.environ | safe | POCL | environment, cwd=ROOT, timeout=300,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize("devices", ["pthread", "pthread pthread"], ids=["one", "two"])
def test_the_devices_checks(run, devices):
    code, text = run("-m", "anyop", "device-check", "opencl", POCL_DEVICES=devices)
    assert code == 0 and "opencl: 24 of 24 checks passed" in text, text


def test_operators(run):
    pytest.importorskip("torch", reason="torch is not installed")
    cache = os.environ.get("ANYOP_CACHE_DIR", os.path.expanduser("~/.cache/anyop"))
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/opencl/operators.py")
    code, text = run(*words, ANYOP_DEVICE_PLATFORM="opencl", ANYOP_CACHE_DIR=cache)
    assert code == 0 and "[100%]" in text, text[-4000:]


DEVICE = """
from anyop.conformance.device_table import Device
device = Device("opencl")
try:
    device.set_current(0)
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ANYOP_OPENCL_LIBRARY": "/nowhere/libOpenCL.so"}, "install an OpenCL loader"),
        ({"ANYOP_OPENCL_LIBRARY": "libc.so.6"}, "libc.so.6 lacks clGetPlatformIDs"),
        (
            {"ANYOP_OPENCL_DEVICE": "NVIDIA"},
            "no such platform; there is Portable Computing Language",
        ),
        ({"ANYOP_OPENCL_DEVICE": "portable:7"}, "devices, counted from 0"),
        ({"ANYOP_OPENCL_DEVICE": "portable:x"}, "devices, counted from 0"),
        ({"OCL_ICD_VENDORS": "/nowhere"}, "no such platform; there is no platform at all"),
    ],
)
def test_what_cannot_be_used_is_said(run, environment, message):
    code, text = run("-c", DEVICE, **environment)
    assert code == 0 and message in text, text


def test_a_forked_child_is_refused(run):
    child = (
        "import os\nif os.fork() == 0:\n    device.set_current(0)\nelse:\n    print(os.wait()[1])"
    )
    code, text = run("-c", DEVICE + child)
    assert code == 0 and "forked after the device's first use" in text, text


COPY = """
__kernel void copy(__global const int* x, ulong a, __global int* y, ulong b) {
  y[b / 4 + get_global_id(0)] = x[a / 4 + get_global_id(0)];
}
"""
LOCAL = "__kernel void big(__local int* room) { room[get_local_id(0)] = 1; }"


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in POCL.items():
            patch.setenv(name, value)
        patch.setenv("ANYOP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        made = Device("opencl")
        made.set_current(0)
        yield made


def load(device, text: str) -> int:
    image = Image(
        ctypes.sizeof(Image),
        0,
        b"own.cl",
        text.encode(),
        len(text),
        b"-DREAL=float -DREAL_IS_DOUBLE=0",
    )
    return device.made("load_image", 0, ctypes.byref(image))


def launch(device, kernel: int, pointers: list[int], threads: int = 4, shared: int = 0) -> None:
    held = [Pointer(pointer) for pointer in pointers]
    values = (Pointer * 4)(*(ctypes.addressof(pointer) for pointer in held))
    sizes = (ctypes.c_uint32 * 4)()
    how = Launch(
        ctypes.sizeof(Launch), len(held), values, sizes, (1, 1, 1), (threads, 1, 1), shared
    )
    device.launch_kernel(0, None, kernel, ctypes.byref(how))


def test_an_image_runs_inside_of_buffers(device):
    numbers = (ctypes.c_int32 * 8)(*range(8))
    back = (ctypes.c_int32 * 8)()
    kernel = device.made("find_kernel", 0, load(device, COPY), b"copy")
    with device.memory(32) as x, device.memory(32) as y:
        device.copy(0, x, ctypes.addressof(numbers), 32, 1)
        device.copy(0, y, ctypes.addressof(back), 32, 1)
        launch(device, kernel, [x + 8, y + 12])
        device.copy(0, ctypes.addressof(back), y, 32, 2)
    assert list(back) == [0, 0, 0, 2, 3, 4, 5, 0]


def test_bad_images_and_launches(device):
    with pytest.raises(Refused, match=r"own.cl does not compile on .*own\.cl:2"):
        load(device, "\n__kernel void broken() { nothing; }")
    image = load(device, COPY)
    with pytest.raises(Refused, match=r"own\.cl has no kernel copied; it has copy"):
        device.made("find_kernel", 0, image, b"copied")
    kernel = device.made("find_kernel", 0, image, b"copy")
    with device.memory(32) as x:
        with pytest.raises(Refused, match="copy takes 4 arguments, and 2 are passed"):
            launch(device, kernel, [x])
        with pytest.raises(Refused, match="no memory of the device"):
            launch(device, kernel, [x, 64])
        with pytest.raises(Refused, match="a block of copy has 1048576 threads"):
            launch(device, kernel, [x, x], 1 << 20)
    big = device.made("find_kernel", 0, load(device, LOCAL), b"big")
    with pytest.raises(Refused, match="big asks for 1073741824 bytes of local memory"):
        launch(device, big, [], shared=1 << 30)
    with pytest.raises(Refused, match="the largest buffer of"):
        device.made("allocate", 0, 1 << 60)


PROGRAM = (
    DEVICE
    + """
import ctypes
from anyop.conformance.device_table import Image
text = b"__kernel void nothing() {}"
image = Image(ctypes.sizeof(Image), 0, b"own.cl", text, len(text), b"-DREAL=float -DREAL_IS_DOUBLE=0")
print("kernel", bool(device.made("find_kernel", 0, device.made("load_image", 0, ctypes.byref(image)), b"nothing")))
"""
)


TOPK = """
import anyop, numpy as np
from anyop.conformance.device_table import Device, use
from anyop.testing.dlpack import DlpackArray
device = Device("opencl")
use(device)
def there(dtype):
    return DlpackArray(np.empty(8, dtype), device=(12, 0), data=device.made("allocate", 0, 64))
x, values, indices = map(there, ("float32", "float32", "int64"))
anyop.topk(x, 8, out=(values, indices))
"""


def test_a_process_may_end_while_a_kernel_is_compiled(run):
    """PoCL's threads do so when it is first started, with objects of LLVM's that atexit ends."""
    assert run("-c", TOPK) == (0, "")


def test_programs_are_kept_and_damaged_ones_made_anew(run, tmp_path):
    folder = tmp_path / "cache" / "opencl"
    assert run("-c", PROGRAM) == (0, "kernel True\n")
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    assert run("-c", PROGRAM) == (0, "kernel True\n")
    assert kept.read_bytes() == whole
    for damaged in (whole[:-1], whole[:200], b"", whole[:-40] + bytes(40)):
        kept.write_bytes(damaged)
        assert run("-c", PROGRAM) == (0, "kernel True\n")
        assert len(kept.read_bytes()) > len(whole) // 2 and [*folder.iterdir()] == [kept]


def test_a_program_of_another_driver_is_built_anew(run, tmp_path):
    """A file in its place that is whole, but whose head names another driver."""
    folder = tmp_path / "cache" / "opencl"
    assert run("-c", PROGRAM) == (0, "kernel True\n")
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    assert whole[8:16] == fnv(whole[16:]).to_bytes(8, "little")
    body = whole[16:].replace(b"Portable", b"Portahle", 1)
    assert body != whole[16:]
    kept.write_bytes(whole[:8] + fnv(body).to_bytes(8, "little") + body)
    assert run("-c", PROGRAM) == (0, "kernel True\n")
    assert kept.read_bytes().count(b"Portahle") == 0


def fnv(data: bytes) -> int:
    """FNV-1a, the checksum of program_cache.cc."""
    found = 14695981039346656037
    for byte in data:
        found = (found ^ byte) * 1099511628211 % 2**64
    return found


def test_freed_memory_and_that_of_others_are_refused(device):
    kernel = device.made("find_kernel", 0, load(device, COPY), b"copy")
    with device.memory(32) as x:
        freed = device.made("allocate", 0, 32)
        device.free(0, freed)
        host = (ctypes.c_int32 * 8)()
        for wrong in (freed, ctypes.addressof(host)):
            with pytest.raises(Refused, match=r"no memory of the device \(foreign, or freed\)"):
                launch(device, kernel, [x, wrong])
            with pytest.raises(Refused, match=r"no memory of the device \(foreign, or freed\)"):
                device.copy(0, x, wrong, 32, 3)
            with pytest.raises(Refused, match="was not allocated by this device"):
                device.free(0, wrong)


def test_a_cache_that_cannot_be_written_is_said_once(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, text = run("-c", PROGRAM, ANYOP_CACHE_DIR=str(tmp_path / "file"))
    assert code == 0 and text.count("cannot be kept in") == 1 and "kernel True" in text, text
