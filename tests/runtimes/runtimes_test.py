# SPDX-License-Identifier: Apache-2.0
"""The plugin cuda_like on false runtimes (tests/runtimes): each row's checks, and every way to break one.

Each in a process of its own, as a process has one runtime.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import false_runtimes
from false_runtimes import CAN_FAIL, ONCE, OPEN, ROWS, check, device_name, make, run, vendor_name

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


@pytest.mark.parametrize("row", ROWS)
def test_the_devices_checks(row, tmp_path):
    name = device_name(row)
    code, text = check(make(row, tmp_path).environment, name)
    assert code == 0 and f"{name}: 24 of 24 checks passed" in text, text


def test_the_devices_checks_of_a_runtime_that_lacks_nothing(tmp_path):
    code, text = check(make("hip", tmp_path, full=True).environment, "hip")
    assert code == 0 and "hip: 24 of 24 checks passed" in text, text


@pytest.mark.parametrize("row", ["hip", "musa"])
def test_a_false_runtime_over_cudart(row, tmp_path):
    """What tests/cuda/frameworks/cuda_runtimes.py runs on a GPU, over a cudart that is false too."""
    cuda = make("cuda", tmp_path / "cuda")
    driver = cuda.library.with_name(ROWS["cuda"]["module_libraries"][0])
    made = make(row, tmp_path / row, cudart=cuda.library, driver=driver)
    code, text = check(
        made.environment, row, "functions", "properties", "copies", "waiting", "timing"
    )
    assert code == 0 and f"false {ROWS[row]['vendor']} over false NVIDIA CUDA" in text, text
    code, text = run(made.environment, "-c", ONCE, row)
    assert code == 0 and "filled True" in text and " 7 3 1" in text, text


# ---- every function once ----


@pytest.fixture(scope="module")
def hip(tmp_path_factory):
    return make("hip", tmp_path_factory.mktemp("hip"), full=True)


def test_every_function_once(hip):
    code, text = run(hip.environment, "-c", ONCE, "hip")
    told = text.splitlines()
    assert code == 0 and told[:3] == [
        "devices 2",
        "current 0",
        "name false AMD ROCm 0 over host 7 3 1",
    ]
    assert told[3:7] == ["query_stream 1", "query_event 1", "filled True", "between True"], text
    assert len(told) == 8 and "was not allocated by this device (foreign, or freed)" in told[7], (
        text
    )


@pytest.mark.parametrize("function", [*CAN_FAIL, *false_runtimes.MODULES])
def test_an_error_of_every_function_is_told_with_the_runtimes_own_text(function, hip):
    if function in ("MallocHost", "StreamAddCallback", "RuntimeGetVersion"):
        pytest.skip("not called where there is another one, or its error is no version")
    code, text = run(hip.environment | {"ANYOP_FALSE": f"fail={function}:1"}, "-c", ONCE, "hip")
    told = "hip: AMD ROCm says " if function != "GetDeviceCount" else "libamdhip64.so says "
    assert code == 0 and f'{told}"a false error" (hipErrorUnknown, 999) ' in text, text
    others = {"GetDeviceCount", "EventRecord"}  # without which others cannot work
    assert text.count("a false error") == 1 or function in others, text


# ---- what is seen at opening ----


@pytest.mark.parametrize(
    "function", [f for f in false_runtimes.FUNCTIONS if f not in ROWS["hip"]["missing"]]
)
def test_a_name_that_is_missing(function, tmp_path):
    runtime = make("hip", tmp_path, lacks=[function])
    code, text = run(runtime.environment, "-c", OPEN, "hip")
    theirs = vendor_name(ROWS["hip"], function, "hip")
    if function == "MallocHost":  # HostAlloc is enough
        assert code == 0 and "devices range(0, 2)" in text, text
        return
    assert code == 0 and f"hip: AMD ROCm: {runtime.library} " in text and theirs in text, text
    assert "another vendor's, or of another version; install ROCm" in text, text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("name600=1", "calls error 600 'hipErrorSystemNotHappy', expected ...ErrorNotReady: its numbers"),
        ("version=1", "libamdhip64.so is version 1, expected 40200000 or newer; install ROCm"),
        ("devices=0", "libamdhip64.so finds no device of AMD ROCm; install ROCm"),
        ("devices=0 nodevice=35", 'libamdhip64.so says "a false error" (hipErrorUnknown, 35) when asked'),
    ],
)  # fmt: skip
def test_what_is_seen_at_opening(words, message, hip):
    code, text = run(hip.environment | {"ANYOP_FALSE": words}, "-c", OPEN, "hip")
    assert code == 0 and message in text, text
    assert ("devices range(0, 0)" in text) == (words == "devices=0"), text


# ---- what a check sees ----


@pytest.mark.parametrize(
    ("words", "only", "message"),
    [
        ("oom=3", "allocation", "2^60 bytes: status 6, expected 4"),
        ("memory=1000", "allocation", "out of false memory"),
        ("notready=34", "independence", "while asking a stream"),
        ("blocking=1", "independence", "another stream took"),
        ("notiming=4", "timing", "(hipErrorInvalidValue, 1) while making an event"),
        ("kinds=1", "copies", "while copying"),
        ("nowait=1", "plain_copies", "bytes of plain host memory are wrong"),
        ("nowaitevent=1", "waiting", "a stream did not wait for the event"),
        ("faster=1000", "timing", "ms between events, expected 100"),
        ("fail=EventRecord:900", "many_handles", "while recording an event"),
    ],
)
def test_what_a_check_sees(words, only, message, hip):
    code, text = check(hip.environment | {"ANYOP_FALSE": words}, "hip", only)
    assert code == 1 and f"WRONG {only}" in text and message in text, text


def test_memory_of_streams_where_its_name_alone_is_there(hip):
    only = ("stream_memory", "allocation", "events")
    code, text = check(hip.environment | {"ANYOP_FALSE": "nopool=1"}, "hip", *only)
    assert code == 0, text


STREAMS = """
from anyop.conformance.device_table import Device
from anyop.conformance.device_stream_checks import delay
device = Device("musa")
def first(stream, size=1000):
    return device.made("allocate_on", 0, stream, size)
held, other = device.made("create_stream", 0), device.made("create_stream", 0)
memory = first(held)
delay(device, 0, held)
device.free_on(0, held, memory)
print("its stream's", first(held) == memory)
device.free_on(0, held, memory)
device.destroy_stream(0, held)
print("not another's", first(other) != memory)
device.synchronize_device(0)
print("until it is done", first(other) == memory)
"""


def test_memory_of_a_stream_that_was_ended_is_given_to_others_when_its_work_is_done(tmp_path):
    code, text = run(make("musa", tmp_path).environment, "-c", STREAMS)
    assert (code, text) == (0, "its stream's True\nnot another's True\nuntil it is done True\n")
