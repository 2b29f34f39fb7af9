# SPDX-License-Identifier: Apache-2.0
"""What include/anyop/device.h says of every device, as checks that measure: table, devices, memory, copies, errors.

A check takes a Device and returns what it found, a text with its number; what is wrong it raises.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

from anyop.conformance.device_table import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    FUNCTIONS,
    HOST_TO_DEVICE,
    OPTIONAL,
    OUT_OF_MEMORY,
    Device,
    Image,
    Int,
    Launch,
    Long,
    Missing,
    Properties,
    Refused,
    Scope,
    Versions,
)

SIZES = [1, 3, 7, 63, 64, 65, 1023, 4097, (1 << 20) + 1]


class Wrong(Exception):
    """The device does not do what the header says."""


def must(good: object, text: str) -> None:
    """Raises Wrong."""
    if not good:
        raise Wrong(text)


def refused(what: str, call: Callable, *arguments: Any, status: int | None = None) -> int:
    """The call must be refused, with a text; 1."""
    try:
        call(*arguments)
    except Refused as error:
        must(error.text, f"{what} is refused without a text of last_error")
        must(status in (None, error.status), f"{what}: status {error.status}, expected {status}")
        return 1
    raise Wrong(f"{what} is not refused")


def pattern(size: int, seed: int) -> bytes:
    """Bytes that differ from those of other sizes and seeds, and repeat at no power of two."""
    period = bytes((i * 7 + seed * 31 + size) % 256 for i in range(1021))
    return (period * (size // 1021 + 1))[:size]


def address(buffer: Any, offset: int = 0) -> int:
    """Of a ctypes buffer."""
    return ctypes.addressof(buffer) + offset


def in_threads(count: int, body: Callable[[int], None]) -> None:
    """Runs body(0), body(1), ... at once; the first exception is raised here."""
    errors: list[BaseException] = []

    def run(n: int) -> None:
        try:
            body(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ---- table and devices ----


def functions(device: Device) -> str:
    """All functions that a PyTorch device needs are there."""
    table = device.table
    must(table.abi_version == 1, f"abi_version is {table.abi_version}, expected 1")
    missing = [name for name in FUNCTIONS if name not in OPTIONAL and not device.has(name)]
    if missing:
        raise Missing(f"lacks {', '.join(missing)}")
    return f"{sum(map(device.has, FUNCTIONS)) + 3} of {len(FUNCTIONS) + 3}"


def current_device(device: Device) -> str:
    """The current device is each thread's own; enter and leave put it back."""
    last = device.devices[-1]
    before = device.made("get_current", kind=Int)
    for index in device.devices:
        device.set_current(index)
        must(device.made("get_current", kind=Int) == index, f"set_current({index}) has no effect")
        _enter_and_leave(device, index)
    device.set_current(last)
    seen = []

    def look(_: int) -> None:
        device.set_current(0)
        seen.append(device.made("get_current", kind=Int))

    in_threads(1, look)
    must(
        seen == [0] and device.made("get_current", kind=Int) == last,
        "a thread's device is another's",
    )
    device.set_current(before)
    return f"{len(device.devices)} devices"


def _enter_and_leave(device: Device, index: int) -> None:
    for other in device.devices:
        scope = Scope()
        device.enter(other, ctypes.byref(scope))
        must(device.made("get_current", kind=Int) == other, f"enter({other}) has no effect")
        if scope.changed:
            device.leave(ctypes.byref(scope))
        must(device.made("get_current", kind=Int) == index, "leave does not put the device back")


def properties(device: Device) -> str:
    """Name, memory, units and priorities make sense, and free memory is not more than there is."""
    found = Properties(size=ctypes.sizeof(Properties))
    for index in device.devices:
        device.properties(index, ctypes.byref(found))
        must(found.name and found.total_bytes > 0 and found.compute_units > 0, "something is 0")
        must(found.least_priority >= found.greatest_priority, "greatest_priority is the larger")
        free, total = Long(), Long()
        device.memory_info(index, ctypes.byref(free), ctypes.byref(total))
        must(0 < free.value <= total.value, f"{free.value} of {total.value} bytes are free")
    refused("properties of a struct of 4 bytes", device.properties, 0, ctypes.byref(Properties(4)))
    if device.has("versions"):
        device.versions(ctypes.byref(Versions(ctypes.sizeof(Versions))))
    return (
        f"{found.name.decode()}, {found.total_bytes / 2**30:.1f} GiB, {found.compute_units} units"
    )


# ---- memory ----


def allocation(device: Device) -> str:
    """Blocks are 64-byte aligned, apart, the device's own; what is too much is refused and harms nothing."""
    blocks = []
    for index, size in itertools.product(device.devices, SIZES * 3):
        memory = device.made("allocate", index, size)
        must(memory and memory % 64 == 0, f"{size} bytes lie at {memory}, not aligned to 64")
        blocks.append((memory, size, index))
    ends = sorted((memory, memory + size) for memory, size, _ in blocks)
    apart = all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    must(apart, "blocks overlap")
    for memory, size, index in blocks:
        if device.has("device_of"):
            for inside in (memory, memory + size - 1):
                owner = device.made("device_of", inside, kind=Int)
                must(owner == index, f"memory of device {index} is said to be of {owner}")
        device.free(index, memory)
    must(device.made("allocate", 0, 0) is None, "0 bytes do not give NULL")
    device.free(0, None)
    refused("-1 bytes", device.made, "allocate", 0, -1)
    refused("2^60 bytes", device.made, "allocate", 0, 1 << 60, status=OUT_OF_MEMORY)
    with device.memory(64):
        return f"{len(blocks)} blocks"


def pinned_memory(device: Device) -> str:
    """allocate_host's memory is known, written by the CPU, and other memory is not taken for it."""
    plain = ctypes.create_string_buffer(64)
    for index, size in itertools.product(device.devices, SIZES):
        with device.memory(size, index, host=True) as memory:
            ctypes.memset(memory, 7, size)
            for inside in (memory, memory + size - 1):
                must(
                    device.made("is_host", inside, kind=Int), "is_host does not know pinned memory"
                )
    must(
        not device.made("is_host", address(plain), kind=Int), "is_host takes any memory for pinned"
    )
    must(device.made("allocate_host", 0, 0) is None, "0 bytes do not give NULL")
    device.free_host(0, None)
    refused("-1 bytes", device.made, "allocate_host", 0, -1)
    return f"{len(SIZES) * len(device.devices)} blocks"


def copies(device: Device) -> str:
    """Bytes of odd sizes at odd places go to the device, within it and back; those beside stay."""
    count = 0
    for index, size, offset in itertools.product(device.devices, SIZES, (0, 1, 13)):
        _copy_around(device, index, size, offset)
        count += 3
    with device.memory(64) as memory:
        source = ctypes.create_string_buffer(64)
        device.copy(0, memory, address(source), 0, HOST_TO_DEVICE)
        refused("a copy of -1 bytes", device.copy, 0, memory, address(source), -1, 1)
        for kind in (0, 4, -1):
            refused(f"a copy of kind {kind}", device.copy, 0, memory, address(source), 4, kind)
    return f"{count} copies"


def _copy_around(device: Device, index: int, size: int, offset: int) -> None:
    whole = size + offset + 16
    data = pattern(size, offset)
    source = ctypes.create_string_buffer(data, size)
    back = ctypes.create_string_buffer(b"\xee" * whole, whole)
    with device.memory(whole, index) as one, device.memory(whole, index) as two:
        device.copy(index, two, address(back), whole, HOST_TO_DEVICE)
        device.copy(index, one + offset, address(source), size, HOST_TO_DEVICE)
        device.copy(index, two + offset, one + offset, size, DEVICE_TO_DEVICE)
        device.copy(index, address(back), two, whole, DEVICE_TO_HOST)
    expected = b"\xee" * offset + data + b"\xee" * 16
    must(back.raw == expected, f"a copy of {size} bytes at offset {offset} is wrong")


def between_devices(device: Device) -> str:
    """copy_between_on carries bytes from each device to each, in the order of a stream of either."""
    if not device.has("copy_between_on"):
        return "copy_between_on is not there, which is allowed"
    count = 0
    for to, source in itertools.product(device.devices, device.devices):
        for where, size in itertools.product({to, source}, SIZES):
            data = ctypes.create_string_buffer(pattern(size, to), size)
            back = ctypes.create_string_buffer(size)
            with (
                device.memory(size, to) as there,
                device.memory(size, source) as here,
                device.stream(where) as stream,
            ):
                device.copy(source, here, address(data), size, HOST_TO_DEVICE)
                device.copy_between_on(where, stream, there, to, here, source, size)
                device.synchronize_stream(where, stream)
                device.copy(to, address(back), there, size, DEVICE_TO_HOST)
            must(back.raw == data.raw, f"{size} bytes from device {source} to {to} are wrong")
            count += 1
    return f"{count} copies"


# ---- errors ----


def bad_devices(device: Device) -> str:
    """A device that is not there is refused by every function, and what is there works on."""
    count = 0
    with device.memory(64) as memory:
        for bad in (-1, len(device.devices), 1 << 20):
            for name, types in FUNCTIONS.items():
                if not types or types[0] is not Int or not device.has(name):
                    continue
                if name.startswith(("destroy", "free")) or name == "elapsed_ms" or "event" in name:
                    continue  # their handles would have to be bad too
                count += refused(f"{name} of device {bad}", *_of_device(device, name, bad, memory))
    with device.memory(64):
        return f"{count} refusals"


def _of_device(device: Device, name: str, bad: int, memory: int) -> list[Any]:
    """A call with good arguments but for the device."""
    place, other = ctypes.c_void_p(), Long()
    buffer = ctypes.create_string_buffer(8)
    rest: dict[str, list[Any]] = {
        "set_current": [],
        "copy": [memory, address(buffer), 8, HOST_TO_DEVICE],
        "copy_on": [None, memory, address(buffer), 8, HOST_TO_DEVICE],
        "allocate": [8, ctypes.byref(place)],
        "allocate_host": [8, ctypes.byref(place)],
        "allocate_on": [None, 8, ctypes.byref(place)],
        "create_stream": [ctypes.byref(place)],
        "create_stream_with": [0, ctypes.byref(place)],
        "synchronize_stream": [None],
        "synchronize_device": [],
        "query_stream": [None, ctypes.byref(Int())],
        "launch_host": [None, ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), None],
        "set_on": [None, memory, 0, 8],
        "copy_between_on": [None, memory, 0, memory, 0, 8],
        "properties": [ctypes.byref(Properties(ctypes.sizeof(Properties)))],
        "memory_info": [ctypes.byref(Long()), ctypes.byref(other)],
        "load_image": [
            ctypes.byref(Image(ctypes.sizeof(Image), 0, b"image", b"", 0, None)), ctypes.byref(place),
        ],
        "find_kernel": [None, b"kernel", ctypes.byref(place)],
        "launch_kernel": [None, None, ctypes.byref(Launch(ctypes.sizeof(Launch)))],
    }  # fmt: skip
    return [getattr(device, name), bad, *rest[name]]


def errors_of_threads(device: Device) -> str:
    """last_error is the text of the same thread."""
    seen: dict[int, str] = {}
    barrier = threading.Barrier(4)

    def fail(n: int) -> None:
        try:
            device.made("allocate", 1000 + n, 8)
        except Refused as error:
            seen[n] = error.text
        barrier.wait()
        must((device.table.last_error() or b"").decode() == seen.get(n), "another thread's text")

    in_threads(4, fail)
    return f"{len(seen)} threads"


CHECKS = [functions, current_device, properties, allocation, pinned_memory, copies, between_devices, bad_devices,
          errors_of_threads]  # fmt: skip
