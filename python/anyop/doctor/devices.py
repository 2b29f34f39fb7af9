# SPDX-License-Identifier: Apache-2.0
"""CUDA devices, asked of the driver itself by a Python of its own: no framework, and no CUDA in this process."""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Iterator

from anyop.doctor.finding import NOTE, OK, PROBLEM, Finding, ask

_GROUP = "devices"
_SECONDS = 4.0  # starting the driver of eight GPUs may take more than two
# The driver's own functions; 75 and 76 are the numbers of the compute capability, 16 of the multiprocessors.
_ASK = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"missing": str(error)}))
    raise SystemExit
def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        said = (text.value or b"nothing").decode()
        print(json.dumps({"error": f"{name} says {code}: {said}"}))
        raise SystemExit
version, count, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
call("cuDriverGetVersion", ctypes.byref(version))
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(count))
devices = []
for at in range(count.value):
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    call("cuDeviceGet", ctypes.byref(device), at)
    call("cuDeviceGetName", name, 128, device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    values = []
    for attribute in (75, 76, 16):
        call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        values.append(number.value)
    devices.append([name.value.decode(), memory.value, *values])
print(json.dumps({"version": version.value, "devices": devices}))
"""


def findings() -> Iterator[Finding]:
    """The driver and each device; a machine without any has a note."""
    try:
        answer = json.loads(
            ask([sys.executable, "-I", "-S", "-c", _ASK], _SECONDS).splitlines()[-1]
        )
    except (RuntimeError, ValueError, IndexError) as error:
        yield _broken(error)
        return
    if "missing" in answer:
        yield _no_driver(answer["missing"])
        return
    if "error" in answer:
        yield Finding(_GROUP, "CUDA", PROBLEM, answer["error"], "nvidia-smi says more")
        return
    number = answer["version"]
    text = f"NVIDIA's driver, for CUDA {number // 1000}.{number % 1000 // 10}"
    yield Finding(_GROUP, "CUDA", OK if answer["devices"] else NOTE, text)
    for at, (name, memory, major, minor, processors) in enumerate(answer["devices"]):
        size = f"{memory / (1 << 30):.0f} GiB, {processors} multiprocessors"
        yield Finding(
            _GROUP, f"cuda:{at}", OK, f"{name}, compute capability {major}.{minor}, {size}"
        )


def _broken(said: object) -> Finding:
    return Finding(
        _GROUP, "CUDA", PROBLEM, f"the driver does not answer: {said}", "nvidia-smi says more"
    )


def _no_driver(said: str) -> Finding:
    """None is usual; one that cannot be loaded, or a device without it, is not."""
    if glob.glob("/dev/nvidia[0-9]*") or "No such file" not in said:
        return _broken(said)
    return Finding(
        _GROUP, "CUDA", NOTE, "no NVIDIA driver (libcuda.so.1): only the CPU's kernels run here"
    )
