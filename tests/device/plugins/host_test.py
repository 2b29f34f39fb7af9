# SPDX-License-Identifier: Apache-2.0
"""The host as a device: it passes `anyop device-check`; what programs meet at a fork, at exit, and by variables."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.host

BEGIN = """
import ctypes, os, sys, time
from anyop.conformance.device_table import Device, Refused, _library
from anyop.conformance.device_stream_checks import delay
device, library = Device("host"), _library()
address = ctypes.c_void_p(ctypes.addressof(device.table))
"""


def run(program: str, *, code: int = 0, **environment: str) -> str:
    """What a process prints that begins with BEGIN."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_it_does_what_the_header_says():
    words = [sys.executable, "-m", "anyop", "device-check", "host"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("host: 24 of 24 checks passed\n")


def test_work_in_flight_is_done_before_the_process_ends():
    program = """
text = ctypes.create_string_buffer(b"the last work is done")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
stream = device.made("create_stream", 1)
delay(device, 1, stream, 200)
device.launch_host(1, stream, ctypes.cast(ctypes.CDLL(None).puts, ctypes.c_void_p), ctypes.addressof(text))
device.destroy_stream(1, stream)
"""
    assert run(program) == "the last work is done\n"


def test_a_child_of_a_fork_is_refused():
    """Every function says so at once, giving back does nothing; the parent goes on."""
    program = """
memory, stream = device.made("allocate", 0, 64), device.made("create_stream", 0)
delay(device, 0, stream, 100)
child = os.fork()
if child == 0:
    texts = set()
    for call in (lambda: device.made("allocate", 0, 8), lambda: device.synchronize_stream(0, stream),
                 lambda: device.synchronize_device(0), lambda: device.made("create_event", 0),
                 lambda: delay(device, 0, None), lambda: device.set_current(1)):
        try:
            call()
        except Refused as error:
            texts.add(error.text)
        else:
            os._exit(2)
    device.free(0, memory)
    device.destroy_stream(0, stream)
    print(*texts, flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
device.synchronize_stream(0, stream)
print("the parent works")
"""
    first, second = run(program).splitlines()
    assert first.startswith(
        "host: the process was forked after the device's first use, and a child"
    )
    assert second == "the parent works"


def test_a_fork_before_the_first_use_is_none():
    program = """
child = os.fork()
delay(device, 0, None, 10)
device.synchronize_device(0)
if child:
    assert os.waitpid(child, 0)[1] == 0
print("works", flush=True)
"""
    assert run(program) == "works\nworks\n"


def test_the_limit_of_memory():
    program = """
place = ctypes.c_void_p()
malloc = library.AnyopDeviceMalloc
malloc.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
for size in (30 << 20, 40 << 20):
    status = malloc(address, 0, None, size, ctypes.byref(place))
    print(status, place.value is not None, library.AnyopLastError().decode() if status else "")
"""
    first, second = run(program, ANYOP_DEVICE_MEMORY_LIMIT=str(64 << 20)).splitlines()
    assert first == "0 True "
    assert second == (
        "4 False host: out of memory on device 0: 41943040 bytes were asked for; 31457280 are given out and 0 cached; "
        "the limit is 67108864"
    )
    found = run(program, ANYOP_DEVICE_MEMORY_LIMIT="lots").splitlines()[0]
    assert found == "1 False ANYOP_DEVICE_MEMORY_LIMIT is 'lots', expected a number of bytes"
