# SPDX-License-Identifier: Apache-2.0
"""What include/anyop/device.h says of streams and events, as checks that measure.

Streams are held up by a function that sleeps 200 ms: what must not wait for it has to be done in half of that.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from anyop.conformance.device_checks import (
    SIZES,
    Wrong,
    address,
    in_threads,
    must,
    pattern,
    refused,
)
from anyop.conformance.device_table import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    NO_TIMING,
    Device,
    HostFunction,
    Int,
    Properties,
)

DELAY_MS = 200
# A C function, so that no Python runs on the device's thread; its argument is the number of microseconds.
_USLEEP = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)


def delay(device: Device, index: int, stream: int | None, ms: int = DELAY_MS) -> None:
    """Holds the stream up."""
    device.launch_host(index, stream, _USLEEP, ms * 1000)


def milliseconds(call: Callable, *arguments: Any) -> float:
    """What the call takes."""
    begin = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - begin) * 1000


def soon(what: str, call: Callable, *arguments: Any) -> float:
    """The call must not wait for the delay."""
    took = milliseconds(call, *arguments)
    must(
        took < DELAY_MS / 2,
        f"{what} took {took:.0f} ms while another stream was held up for {DELAY_MS}",
    )
    return took


@contextmanager
def pinned(device: Device, data: bytes, index: int = 0) -> Iterator[int]:
    """Pinned memory with these bytes."""
    with device.memory(len(data), index, host=True) as memory:
        ctypes.memmove(memory, data, len(data))
        yield memory


def done(device: Device, function: str, handle: int | None, index: int = 0) -> bool:
    """What query_stream or query_event says."""
    return bool(device.made(function, index, handle, kind=Int))


def order(device: Device) -> str:
    """What is put into a stream is done one after another, also into the default one."""
    count, size = 300, 4097
    for index in device.devices:
        with device.stream(index) as made:
            for stream in (made, None):
                seen: list[int] = []
                note = HostFunction(lambda value, seen=seen: seen.append(value or 0))
                for n in range(count):
                    device.launch_host(index, stream, note, n)
                device.synchronize_stream(index, stream)
                must(seen == list(range(count)), "functions run out of order")
                _fill_and_copy(device, index, stream, size)
    return f"{2 * count * len(device.devices)} functions, {200 * len(device.devices)} copies"


def _fill_and_copy(device: Device, index: int, stream: int | None, size: int) -> None:
    with (
        device.memory(size, index) as one,
        device.memory(size, index) as two,
        device.memory(100 * size, index, host=True) as back,
    ):
        for n in range(100):
            device.set_on(index, stream, one, n + 0x100, size)
            device.copy_on(index, stream, two, one, size, DEVICE_TO_DEVICE)
            device.copy_on(index, stream, back + n * size, two, size, DEVICE_TO_HOST)
        device.synchronize_stream(index, stream)
        expected = b"".join(bytes([n]) * size for n in range(100))
        must(ctypes.string_at(back, 100 * size) == expected, "copies run out of order")


def independence(device: Device) -> str:
    """A stream that is held up holds up no other, nor the thread that uses it."""
    most = 0.0
    for index in device.devices:
        with (
            device.stream(index) as slow,
            device.stream(index) as fast,
            device.memory(64, index) as m,
        ):
            for held, other in ((slow, fast), (slow, None), (None, fast)):
                asked = milliseconds(delay, device, index, held)
                must(asked < DELAY_MS / 2, f"launch_host waits: {asked:.0f} ms")
                device.set_on(index, other, m, 1, 64)
                took = soon("another stream", device.synchronize_stream, index, other)
                must(
                    not done(device, "query_stream", held, index),
                    "query_stream says done too early",
                )
                must(done(device, "query_stream", other, index), "query_stream says not done")
                rest = milliseconds(device.synchronize_stream, index, held)
                must(rest > DELAY_MS / 4, f"synchronize_stream came back after {rest:.0f} ms")
                must(done(device, "query_stream", held, index), "query_stream says not done")
                most = max(most, took)
    return f"{most:.1f} ms beside a delay of {DELAY_MS}"


def whole_device(device: Device) -> str:
    """synchronize_device waits for all streams, also for one that was ended with work in it."""
    for index in device.devices:
        ran = []
        note = HostFunction(lambda _, ran=ran: ran.append(1))
        streams = [device.made("create_stream", index) for _ in range(3)]
        for stream in streams:
            delay(device, index, stream, DELAY_MS // 2)
            device.launch_host(index, stream, note, None)
        took = milliseconds(device.destroy_stream, index, streams[0])
        device.synchronize_device(index)
        if len(ran) < 3:
            time.sleep(DELAY_MS / 1000)  # the function must stay alive
        must(len(ran) == 3, f"{len(ran)} of 3 streams were done")
        for stream in streams[1:]:
            device.destroy_stream(index, stream)
    return f"3 streams, destroy_stream took {took:.1f} ms"


def pinned_copies(device: Device) -> str:
    """A copy from or to pinned memory does not wait; its bytes are right when the stream is done."""
    most = 0.0
    for index, size in itertools.product(device.devices, (1, 4097, 1 << 20)):
        data = pattern(size, index)
        with (
            device.stream(index) as stream,
            device.memory(size, index) as memory,
            pinned(device, data, index) as source,
            device.memory(size, index, host=True) as back,
        ):
            ctypes.memset(back, 0, size)
            delay(device, index, stream)
            most = max(
                most,
                soon("a copy from pinned memory", device.copy_on, index, stream, memory, source, size, HOST_TO_DEVICE),
                soon("a copy to pinned memory", device.copy_on, index, stream, back, memory, size, DEVICE_TO_HOST),
            )  # fmt: skip
            must(ctypes.string_at(back, size) == bytes(size), "a copy ran ahead of its stream")
            device.synchronize_stream(index, stream)
            must(ctypes.string_at(back, size) == data, f"{size} pinned bytes are wrong")
    return f"{most:.2f} ms a call"


def plain_copies(device: Device) -> str:
    """Other host memory may be changed when copy_on has returned, and has what was copied to it."""
    for index, size in itertools.product(device.devices, [*SIZES, 3 << 20]):
        data = pattern(size, index)
        source, back = ctypes.create_string_buffer(data, size), ctypes.create_string_buffer(size)
        with device.stream(index) as stream, device.memory(size, index) as memory:
            delay(device, index, stream, 20)
            device.copy_on(index, stream, memory, address(source), size, HOST_TO_DEVICE)
            ctypes.memset(source, 0xEE, size)
            device.copy_on(index, stream, address(back), memory, size, DEVICE_TO_HOST)
            must(back.raw == data, f"{size} bytes of plain host memory are wrong")
    return f"{2 * (len(SIZES) + 1) * len(device.devices)} copies"


def filling(device: Device) -> str:
    """set_on fills what it is told to, and nothing beside."""
    for index, size, offset in itertools.product(device.devices, SIZES, (0, 1, 13)):
        whole = size + offset + 16
        back = ctypes.create_string_buffer(whole)
        with device.stream(index) as stream, device.memory(whole, index) as memory:
            device.set_on(index, stream, memory, 0xEE, whole)
            device.set_on(index, stream, memory + offset, 0x1A5, size)
            device.set_on(index, stream, memory, 7, 0)
            device.copy_on(index, stream, address(back), memory, whole, DEVICE_TO_HOST)
            device.synchronize_stream(index, stream)
        expected = b"\xee" * offset + b"\xa5" * size + b"\xee" * 16
        must(back.raw == expected, f"set_on of {size} bytes at offset {offset} is wrong")
    refused("set_on of -1 bytes", device.set_on, 0, None, None, 0, -1)
    return f"{3 * len(SIZES) * len(device.devices)} runs"


def stream_memory(device: Device) -> str:
    """allocate_on's memory is good for what comes behind it in the stream, until free_on."""
    count = 200
    for index in device.devices:
        with device.stream(index) as stream, device.memory(count * 64, index, host=True) as back:
            delay(device, index, stream, 20)
            for n in range(count):
                memory = device.made("allocate_on", index, stream, 65)
                must(memory and memory % 64 == 0, "allocate_on's memory is not 64-byte aligned")
                device.set_on(index, stream, memory, n, 64)
                device.copy_on(index, stream, back + 64 * n, memory, 64, DEVICE_TO_HOST)
                device.free_on(index, stream, memory)
            must(device.made("allocate_on", index, stream, 0) is None, "0 bytes do not give NULL")
            device.synchronize_stream(index, stream)
            expected = b"".join(bytes([n]) * 64 for n in range(count))
            must(
                ctypes.string_at(back, count * 64) == expected, "memory of a stream was given twice"
            )
    return f"{count * len(device.devices)} blocks"


def waiting(device: Device) -> str:
    """A stream that waits for an event of a delayed one reads what that wrote; the thread goes on at once."""
    size, most, pairs = 4097, 0.0, list(itertools.product(device.devices, device.devices))
    for first, second in pairs:
        data = pattern(size, second)
        with (
            device.stream(first) as writes,
            device.stream(second) as reads,
            pinned(device, data) as source,
            device.memory(size, host=True) as middle,
            device.memory(size, first) as memory,
            device.memory(size, second) as other,
            device.memory(size, host=True) as back,
            device.event(first) as event,
        ):
            delay(device, first, writes)
            device.copy_on(first, writes, memory, source, size, HOST_TO_DEVICE)
            device.copy_on(first, writes, middle, memory, size, DEVICE_TO_HOST)
            device.record_event(first, event, writes)
            most = max(most, soon("wait_event", device.wait_event, second, reads, event))
            device.copy_on(second, reads, other, middle, size, HOST_TO_DEVICE)
            device.copy_on(second, reads, back, other, size, DEVICE_TO_HOST)
            device.synchronize_stream(second, reads)
            must(ctypes.string_at(back, size) == data, "a stream did not wait for the event")
    return f"{len(pairs)} pairs of devices, {most:.2f} ms a call"


def events(device: Device) -> str:
    """Events that were never recorded are done; recorded ones are done with their stream, and not before."""
    for index in device.devices:
        with device.stream(index) as stream, device.event(index) as event:
            must(done(device, "query_event", event, index), "an event never recorded is not done")
            device.wait_event(index, stream, event)
            device.synchronize_event(index, event)
            delay(device, index, stream)
            device.record_event(index, event, stream)
            must(not done(device, "query_event", event, index), "query_event says done too early")
            took = milliseconds(device.synchronize_event, index, event)
            must(took > DELAY_MS / 2, f"synchronize_event came back after {took:.0f} ms")
            must(done(device, "query_event", event, index), "query_event says not done")
            _recorded_again(device, index, stream, event)
        device.destroy_event(index, None)
    return f"waited {took:.0f} ms for {DELAY_MS}"


def _recorded_again(device: Device, index: int, stream: int, event: int) -> None:
    """Who waits for the first recording is not let through by the second."""
    with device.stream(index) as waits, device.stream(index) as idle:
        delay(device, index, stream)
        device.record_event(index, event, stream)
        device.wait_event(index, waits, event)
        device.record_event(index, event, idle)
        device.synchronize_event(index, event)
        must(
            not done(device, "query_stream", waits, index),
            "an event recorded again let a stream through",
        )


def timing(device: Device) -> str:
    """elapsed_ms is the time between two events; those without timing work but for that."""
    ms = DELAY_MS / 2
    for index in device.devices:
        with device.stream(index) as stream, device.event(index) as a, device.event(index) as b:
            device.record_event(index, a, stream)
            delay(device, index, stream, int(ms))
            device.record_event(index, b, stream)
            device.synchronize_event(index, b)
            found = device.made("elapsed_ms", index, a, b, kind=ctypes.c_float)
            must(0.9 * ms <= found <= 3 * ms, f"{found:.1f} ms between events, expected {ms:.0f}")
            untimed = device.made("create_event_with", index, NO_TIMING)
            device.record_event(index, untimed, stream)
            device.synchronize_event(index, untimed)
            device.destroy_event(index, untimed)
    return f"{found:.1f} ms for {ms:.0f}"


def priorities(device: Device) -> str:
    """Streams of any priority work; those beyond the range are taken as the nearest."""
    found = Properties(size=ctypes.sizeof(Properties))
    device.properties(0, ctypes.byref(found))
    values = [found.greatest_priority - 9, found.greatest_priority, 0, found.least_priority + 9]
    for index, value in itertools.product(device.devices, values):
        stream = device.made("create_stream_with", index, value)
        delay(device, index, stream, 1)
        device.synchronize_stream(index, stream)
        device.destroy_stream(index, stream)
    return f"{found.least_priority} to {found.greatest_priority}"


def host_functions(device: Device) -> str:
    """launch_host calls with its context, not on the caller's thread; NULL is refused."""
    seen = []
    note = HostFunction(lambda context: seen.append((context, threading.get_native_id())))
    for index in device.devices:
        device.launch_host(index, None, note, 1234 + index)
        device.synchronize_stream(index, None)
    must([c for c, _ in seen] == [1234 + i for i in device.devices], "a context did not arrive")
    mine = threading.get_native_id()
    must(all(thread != mine for _, thread in seen), "a function ran on the caller's thread")
    refused("launch_host of NULL", device.launch_host, 0, None, None, None)
    return f"{len(seen)} calls"


def threads(device: Device) -> str:
    """8 threads copy at once, each on streams of its own; every byte is right."""
    count, size = 200, 4097

    def work(n: int) -> None:
        index = n % len(device.devices)
        with (
            device.stream(index) as stream,
            device.memory(size, index) as memory,
            device.event(index) as event,
            pinned(device, pattern(size, n)) as source,
            device.memory(size, host=True) as back,
        ):
            for _ in range(count):
                ctypes.memset(back, 0, size)
                device.copy_on(index, stream, memory, source, size, HOST_TO_DEVICE)
                device.copy_on(index, stream, back, memory, size, DEVICE_TO_HOST)
                device.record_event(index, event, stream)
                device.synchronize_event(index, event)
                if ctypes.string_at(back, size) != pattern_of[n]:
                    raise Wrong(f"thread {n} read wrong bytes")

    pattern_of = [pattern(size, n) for n in range(8)]
    in_threads(8, work)
    return f"{8 * count} rounds"


def many_handles(device: Device) -> str:
    """1,000 events and 64 streams may be there at once, 5,000 one after another."""
    made = [device.made("create_event", 0) for _ in range(1000)]
    streams = [device.made("create_stream", 0) for _ in range(64)]
    must(len(set(made)) == 1000 and len(set(streams)) == 64, "a handle was given twice")
    for event, stream in zip(made, itertools.cycle(streams)):
        device.record_event(0, event, stream)
    for event in made:
        device.synchronize_event(0, event)
        device.destroy_event(0, event)
    for stream in streams:
        device.destroy_stream(0, stream)
    for _ in range(5000):
        device.destroy_event(0, device.made("create_event", 0))
    return "6000 events, 64 streams"


def exit_with_work(device: Device) -> str:
    """A process that ends while the device works ends with code 0."""
    program = (
        "import sys; from anyop.conformance.device_table import Device; "
        "from anyop.conformance.device_stream_checks import delay; device = Device(sys.argv[1]); "
        "[delay(device, 0, s, 100) for s in (None, device.made('create_stream', 0))]"
    )
    words = [sys.executable, "-c", program, device.given]
    safe = {**os.environ, "PYTHONSAFEPATH": "1"}  # nothing from the current folder
    ended = subprocess.run(words, env=safe, capture_output=True, text=True, timeout=60)
    must(ended.returncode == 0, f"the process ended with {ended.returncode}: {ended.stderr[-300:]}")
    return "code 0"


CHECKS = [order, independence, whole_device, pinned_copies, plain_copies, filling, stream_memory, waiting, events,
          timing, priorities, host_functions, threads, many_handles, exit_with_work]  # fmt: skip
