# SPDX-License-Identifier: Apache-2.0
"""Tensors on the wrong device, several devices, the texts of CUDA's errors, and the functions of anyop/device.h."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import anyop
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device that torch can use", allow_module_level=True)

two_devices = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="this machine has one CUDA device"
)


def test_results_are_where_the_inputs_are():
    x = torch.ones(3, 4, device="cuda")
    for found in (anyop.add(x, x), anyop.rms_norm(x, x[0]), *anyop.rms_norm_backward(x, x, x[0])):
        assert found.device == x.device


def test_tensors_of_two_kinds_of_device_are_refused():
    x, there = torch.ones(3, 4), torch.ones(3, 4, device="cuda")
    for call in (
        lambda: anyop.add(there, x),
        lambda: anyop.add(x, there),
        lambda: anyop.add(there, there, out=x),
        lambda: anyop.rms_norm(there, x[0]),
    ):
        with pytest.raises(ValueError, match=r"is on device \w+:0, expected \w+:0"):
            call()


def test_an_operator_without_a_cuda_kernel_runs_another_backend():
    x = torch.randn(2, 5, 5, 3, device="cuda", dtype=torch.float64)
    weight = torch.randn(4, 3, 3, 3, device="cuda", dtype=torch.float64)
    found = anyop.explain("conv_bias_act", x, weight)
    assert found.chosen == "aten" and found.fallback
    expected = (
        torch.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).relu()
    )
    torch.testing.assert_close(anyop.conv_bias_act(x, weight), expected)


def test_bad_arguments_are_refused_as_on_the_cpu():
    x = torch.ones(3, 4, device="cuda")
    with pytest.raises(ValueError, match="weight has shape"):
        anyop.rms_norm(x, torch.ones(5, device="cuda"))
    with pytest.raises(TypeError, match="weight has dtype"):
        anyop.rms_norm(x, torch.ones(4, device="cuda").half())
    with pytest.raises(ValueError, match="overlaps"):
        anyop.rms_norm(x, x[0], out=x)
    with pytest.raises(ValueError, match="alpha has a fraction"):
        anyop.add(x.int(), x.int(), alpha=0.5)


@two_devices
@pytest.mark.parametrize("current", [0, 1])
def test_the_tensors_device_counts_and_the_current_one_stays(current):
    with torch.cuda.device(current):
        for device in (0, 1):
            x = torch.randn(64, 512, device=f"cuda:{device}")
            weight = torch.randn(512, device=x.device)
            with torch.no_grad():
                found = (anyop.rms_norm(x, weight), *anyop.rms_norm_backward(x, x, weight))
            assert torch.cuda.current_device() == current
            assert all(t.device == x.device for t in found)
            expected = torch.nn.functional.rms_norm(x, (512,), weight, 1e-6)
            torch.testing.assert_close(found[0], expected)


@two_devices
def test_two_cuda_devices_in_one_call_are_refused():
    x, y = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    with pytest.raises(ValueError, match="is on device cuda:1, expected cuda:0"):
        anyop.add(x, y)


@two_devices
def test_side_streams_of_both_devices():
    for device in (1, 0):
        x = torch.zeros(64, 512, device=f"cuda:{device}")
        weight = torch.ones(512, device=x.device)
        torch.cuda.synchronize(device)
        stream = torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            x.fill_(3)
            torch.cuda.set_device(1 - device)  # the stream stays that of its device
            found = anyop.rms_norm(x, weight)
            torch.cuda.set_device(device)
        torch.cuda.synchronize(device)
        torch.testing.assert_close(found, torch.ones_like(x))
    torch.cuda.set_device(0)


ONLY_THE_SECOND = """
import ctypes, threading, anyop, torch
cuda = ctypes.CDLL("libcuda.so.1")
def active(device):
    flags, state = ctypes.c_uint(), ctypes.c_int()
    assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(state)) == 0
    return state.value
x = torch.ones(8, 512, device="cuda:1")
before = active(0)
def call():  # a thread whose current device is 0, which has no context yet
    for _ in range(3): anyop.rms_norm(x, x[0])
    torch.cuda.synchronize(1)
thread = threading.Thread(target=call); thread.start(); thread.join()
call()
print(before, active(0), active(1), torch.cuda.current_device())
"""


@two_devices
def test_no_context_is_made_on_a_device_that_is_not_used():
    run = subprocess.run([sys.executable, "-c", ONLY_THE_SECOND], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    before, first, second, current = map(int, run.stdout.split())
    assert (first, second, current) == (before, 1, 0)


def run(program: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


STICKY = """
import os, anyop, torch
x, w, out = torch.ones(4, 8, device="cuda"), torch.ones(8, device="cuda"), torch.ones(4, 8, device="cuda")
anyop.rms_norm(x, w, out=out)
x[torch.tensor([100], device="cuda")]  # asserts on the device
try:
    torch.cuda.synchronize()
    print("no error")
except RuntimeError:
    try: anyop.rms_norm(x, w, out=out)
    except Exception as error: print(type(error).__name__, error, flush=True)
os._exit(0)
"""


def test_an_error_of_earlier_work_is_named():
    text = run(STICKY)
    assert text.splitlines()[-1].startswith("DeviceError rms_norm: CUDA says "), text
    assert "device-side assert" in text and "can use the device no more" in text


FULL = """
import anyop, torch
x, w = torch.ones(300, 8192, device="cuda"), torch.ones(8192, device="cuda")
results = dict(grad_x=torch.empty_like(x), grad_weight=torch.empty_like(w))
torch.add(x, x)
held, size = [], 1 << 30
while size >= 1 << 20:
    try: held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError: size //= 2
try: print("made", anyop.rms_norm_backward(x, x, w, **results))
except Exception as error: print(type(error).__name__, error)
held.clear(); torch.cuda.empty_cache()
anyop.rms_norm_backward(x, x, w, **results)
torch.cuda.synchronize()
print(float(results["grad_weight"][0]) > 299)
"""


def test_scratch_memory_that_is_not_there():
    """The device is full: an error that names the operator; with memory again, the next call works."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) > 1:
        pytest.skip("it fills the device, on which other processes test: run it without -n")
    refused, works = run(FULL).splitlines()[-2:]
    assert refused.startswith("MemoryError rms_norm_backward: "), refused
    assert "bytes of scratch memory: CUDA says" in refused and "out of memory" in refused
    assert works == "True"


NO_DEVICE = """
import anyop, numpy as np
from anyop.testing.dlpack import DlpackArray
a = np.ones((3, 4), "f4")
x, w, o = (DlpackArray(v, device=(2, 0)) for v in (a, a[0], a.copy()))
print(anyop.rms_norm(a, a[0]).sum() > 11)
try: anyop.rms_norm(x, w, out=o)
except Exception as error: print(type(error).__name__, error)
"""


def test_without_a_visible_device():
    first, second = run(NO_DEVICE, CUDA_VISIBLE_DEVICES="").splitlines()
    assert first == "True"
    assert second.startswith("DeviceError rms_norm: CUDA says ") and "no CUDA-capable" in second


def test_a_device_that_is_not_there():
    from anyop.testing.dlpack import DlpackArray

    array = np.ones((3, 4), np.float32)
    x, weight, out = (DlpackArray(v, device=(2, 77)) for v in (array, array[0], array.copy()))
    with pytest.raises(
        anyop.DeviceError, match="rms_norm: there is no CUDA device 77; this process"
    ):
        anyop.rms_norm(x, weight, out=out)


# ---- anyop/device.h ----

POINTER, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class Scope(ctypes.Structure):
    _fields_ = [("previous", POINTER), ("changed", INT), ("reserved", INT)]


class Versions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("driver", INT),
        ("runtime", INT),
        ("minimum_driver", INT),
    ]


def function(*arguments):
    return ctypes.CFUNCTYPE(INT, *arguments)


OUT = ctypes.POINTER(POINTER)


class Device(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("device_type", INT),
        ("reserved", INT),
        ("enter", function(INT, ctypes.POINTER(Scope))),
        ("leave", function(ctypes.POINTER(Scope))),
        ("last_error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("versions", function(ctypes.POINTER(Versions))),
        ("count", function(ctypes.POINTER(INT))),
        ("get_current", function(ctypes.POINTER(INT))),
        ("set_current", function(INT)),
        ("allocate", function(INT, LONG, OUT)),
        ("free", function(INT, POINTER)),
        ("allocate_on", function(INT, POINTER, LONG, OUT)),
        ("free_on", function(INT, POINTER, POINTER)),
        ("copy", function(INT, POINTER, POINTER, LONG, INT)),
        ("copy_on", function(INT, POINTER, POINTER, POINTER, LONG, INT)),
        ("create_stream", function(INT, OUT)),
        ("destroy_stream", function(INT, POINTER)),
        ("synchronize_stream", function(INT, POINTER)),
        ("synchronize_device", function(INT)),
        ("create_event", function(INT, OUT)),
        ("destroy_event", function(INT, POINTER)),
        ("record_event", function(INT, POINTER, POINTER)),
        ("wait_event", function(INT, POINTER, POINTER)),
        ("synchronize_event", function(INT, POINTER)),
        ("elapsed_ms", function(INT, POINTER, POINTER, ctypes.POINTER(FLOAT))),
    ]


@pytest.fixture
def device():
    library = ctypes.CDLL(str(Path(anyop._anyop.__file__).parent / "lib" / "libanyop.so"))
    library.AnyopFindDevice.restype = ctypes.POINTER(Device)
    return library.AnyopFindDevice(2).contents


class Refused(Exception):
    pass


def good(device, status: int) -> None:
    if status:
        raise Refused(status, device.last_error().decode())


def test_versions_and_count(device):
    versions, count = Versions(ctypes.sizeof(Versions)), INT()
    good(device, device.versions(ctypes.byref(versions)))
    assert versions.driver >= versions.minimum_driver >= 12000 and versions.runtime >= 12000
    good(device, device.count(ctypes.byref(count)))
    assert (device.name, device.device_type, count.value) == (b"cuda", 2, torch.cuda.device_count())


def test_memory_and_copies(device):
    values = np.arange(1000, dtype=np.float32)
    back = np.zeros_like(values)
    first, second = POINTER(), POINTER()
    good(device, device.allocate(0, values.nbytes, ctypes.byref(first)))
    good(device, device.allocate(0, values.nbytes, ctypes.byref(second)))
    assert first.value % 64 == 0
    good(device, device.copy(0, first, values.ctypes.data, values.nbytes, 1))
    good(device, device.copy(0, second, first, values.nbytes, 3))
    good(device, device.copy(0, back.ctypes.data, second, values.nbytes, 2))
    np.testing.assert_array_equal(back, values)
    good(device, device.free(0, first))
    good(device, device.free(0, second))
    good(device, device.free(0, None))
    with pytest.raises(Refused, match="a copy of 4 bytes of kind 9"):
        good(device, device.copy(0, None, None, 4, 9))
    with pytest.raises(Refused, match="out of memory"):
        good(device, device.allocate(0, 1 << 50, ctypes.byref(first)))
    with pytest.raises(Refused, match="there is no CUDA device 99"):
        good(device, device.allocate(99, 64, ctypes.byref(first)))
    assert not first


def test_streams_and_events(device):
    stream, other, begin, end, memory = (POINTER() for _ in range(5))
    for made in (stream, other):
        good(device, device.create_stream(0, ctypes.byref(made)))
    for made in (begin, end):
        good(device, device.create_event(0, ctypes.byref(made)))
    values, back = np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32)
    good(device, device.allocate_on(0, stream, values.nbytes, ctypes.byref(memory)))
    good(device, device.record_event(0, begin, stream))
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.value)):
        torch.cuda._sleep(50_000_000)
    good(device, device.copy_on(0, stream, memory, values.ctypes.data, values.nbytes, 1))
    good(device, device.record_event(0, end, stream))
    good(device, device.wait_event(0, other, end))  # or the second stream would read too early
    good(device, device.copy_on(0, other, back.ctypes.data, memory, values.nbytes, 2))
    good(device, device.synchronize_stream(0, other))
    np.testing.assert_array_equal(back, values)
    elapsed = FLOAT()
    good(device, device.synchronize_event(0, end))
    good(device, device.elapsed_ms(0, begin, end, ctypes.byref(elapsed)))
    assert 5 < elapsed.value < 5000
    good(device, device.free_on(0, stream, memory))
    good(device, device.synchronize_device(0))
    for made, destroy in ((begin, device.destroy_event), (end, device.destroy_event),
                          (stream, device.destroy_stream), (other, device.destroy_stream)):  # fmt: skip
        good(device, destroy(0, made))


@two_devices
def test_a_scope_changes_one_thread_alone(device):
    seen = {}

    def ask(name):
        seen[name] = torch.cuda.current_device()

    scope = Scope()
    torch.cuda.set_device(0)
    good(device, device.enter(1, ctypes.byref(scope)))
    ask("inside")
    thread = threading.Thread(target=ask, args=["elsewhere"])
    thread.start()
    thread.join()
    good(device, device.leave(ctypes.byref(scope)))
    ask("after")
    assert scope.changed and seen == {"inside": 1, "elsewhere": 0, "after": 0}
