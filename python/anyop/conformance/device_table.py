# SPDX-License-Identifier: Apache-2.0
"""include/anyop/device.h by ctypes: a device found by its name or opened from its plugin, and calls that raise."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Pointer, Int, Long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
NO_TIMING = 1
OUT_OF_MEMORY = 4  # AnyopStatus
HostFunction = ctypes.CFUNCTYPE(None, Pointer)


class Scope(ctypes.Structure):
    _fields_ = [("previous", Pointer), ("changed", Int), ("reserved", Int)]


class Versions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("driver", Int),
        ("runtime", Int),
        ("minimum_driver", Int),
    ]


class Properties(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("total_bytes", Long),
        ("compute_units", Int), ("major", Int), ("minor", Int),
        ("least_priority", Int), ("greatest_priority", Int), ("reserved", Int),
        ("name", ctypes.c_char * 128),
    ]  # fmt: skip


class Image(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("name", ctypes.c_char_p),
        ("data", ctypes.c_char_p), ("bytes", Long), ("options", ctypes.c_char_p),
    ]  # fmt: skip


class Launch(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("num_values", ctypes.c_uint32),
        ("values", ctypes.POINTER(Pointer)), ("bytes", ctypes.POINTER(ctypes.c_uint32)),
        ("grid", Long * 3), ("block", Long * 3), ("shared_bytes", Long),
    ]  # fmt: skip


_OUT = ctypes.POINTER(Pointer)
_INT_OUT, _LONG_OUT = ctypes.POINTER(Int), ctypes.POINTER(Long)
# Behind last_error, in the order of the header.
FUNCTIONS: dict[str, list[Any]] = {
    "versions": [ctypes.POINTER(Versions)],
    "count": [_INT_OUT],
    "get_current": [_INT_OUT],
    "set_current": [Int],
    "allocate": [Int, Long, _OUT],
    "free": [Int, Pointer],
    "allocate_on": [Int, Pointer, Long, _OUT],
    "free_on": [Int, Pointer, Pointer],
    "copy": [Int, Pointer, Pointer, Long, Int],
    "copy_on": [Int, Pointer, Pointer, Pointer, Long, Int],
    "create_stream": [Int, _OUT],
    "destroy_stream": [Int, Pointer],
    "synchronize_stream": [Int, Pointer],
    "synchronize_device": [Int],
    "create_event": [Int, _OUT],
    "destroy_event": [Int, Pointer],
    "record_event": [Int, Pointer, Pointer],
    "wait_event": [Int, Pointer, Pointer],
    "synchronize_event": [Int, Pointer],
    "elapsed_ms": [Int, Pointer, Pointer, ctypes.POINTER(ctypes.c_float)],
    "properties": [Int, ctypes.POINTER(Properties)],
    "memory_info": [Int, _LONG_OUT, _LONG_OUT],
    "allocate_host": [Int, Long, _OUT],
    "free_host": [Int, Pointer],
    "is_host": [Pointer, _INT_OUT],
    "device_of": [Pointer, _INT_OUT],
    "set_on": [Int, Pointer, Pointer, Int, Long],
    "copy_between_on": [Int, Pointer, Pointer, Int, Pointer, Int, Long],
    "create_stream_with": [Int, Int, _OUT],
    "query_stream": [Int, Pointer, _INT_OUT],
    "launch_host": [Int, Pointer, Pointer, Pointer],
    "create_event_with": [Int, ctypes.c_uint32, _OUT],
    "query_event": [Int, Pointer, _INT_OUT],
    "load_image": [Int, ctypes.POINTER(Image), _OUT],
    "find_kernel": [Int, Pointer, ctypes.c_char_p, _OUT],
    "launch_kernel": [Int, Pointer, Pointer, ctypes.POINTER(Launch)],
}
IMAGES = {"load_image", "find_kernel", "launch_kernel"}
# What a PyTorch device can do without.
OPTIONAL = {"versions", "copy_between_on", "device_of"} | IMAGES


class Table(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32), ("name", ctypes.c_char_p),
        ("device_type", Int), ("reserved", Int),
        ("enter", ctypes.CFUNCTYPE(Int, Int, ctypes.POINTER(Scope))),
        ("leave", ctypes.CFUNCTYPE(Int, ctypes.POINTER(Scope))),
        ("last_error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        *[(name, ctypes.CFUNCTYPE(Int, *types)) for name, types in FUNCTIONS.items()],
    ]  # fmt: skip


class Refused(Exception):
    """A function's status was not 0."""

    def __init__(self, function: str, status: int, text: str) -> None:
        super().__init__(f"{function}: {text} (status {status})")
        self.status, self.text = status, text


def _library() -> ctypes.CDLL:
    from anyop import _anyop

    library = ctypes.CDLL(os.path.join(os.path.dirname(_anyop.__file__), "lib", "libanyop.so"))
    library.AnyopFindDeviceByName.restype = Pointer
    library.AnyopFindDeviceByName.argtypes = [ctypes.c_char_p]
    library.AnyopLoadDevice.argtypes = [ctypes.c_char_p, ctypes.POINTER(Pointer)]
    library.AnyopLastError.restype = ctypes.c_char_p
    return library


class Device:
    """A registered device. Each function of the table is a method: it raises Refused, and KeyError's text where it is
    missing; what the table writes through a last pointer is returned by those whose names say so here.
    """

    def __init__(self, name: str) -> None:
        library = _library()
        if os.sep in name or name.endswith(".so"):
            place = Pointer()
            if library.AnyopLoadDevice(os.path.abspath(name).encode(), ctypes.byref(place)):
                raise ValueError(library.AnyopLastError().decode())
            address = place.value or 0  # never NULL there
        else:
            address = library.AnyopFindDeviceByName(name.encode())
            if not address:
                raise LookupError(library.AnyopLastError().decode())
        self.given = name
        self.table = Table.from_address(address)
        self.name = self.table.name.decode()

    def has(self, function: str) -> bool:
        """Whether the table is long enough for it, and it is not NULL."""
        end = getattr(Table, function).offset + getattr(Table, function).size
        return end <= self.table.size and bool(getattr(self.table, function))

    def __getattr__(self, function: str) -> Any:
        if function not in FUNCTIONS and function not in ("enter", "leave"):
            raise AttributeError(function)
        if not self.has(function):
            raise Missing(f"lacks {function}")

        def call(*arguments: Any) -> None:
            if status := getattr(self.table, function)(*arguments):
                raise Refused(function, status, (self.table.last_error() or b"").decode())

        return call

    def made(self, function: str, *arguments: Any, kind: Any = Pointer) -> Any:
        """What a function writes through its last argument."""
        place = kind()
        getattr(self, function)(*arguments, ctypes.byref(place))
        return place.value

    @property
    def devices(self) -> range:
        return range(self.made("count", kind=Int))

    @contextmanager
    def stream(self, device: int = 0) -> Iterator[int]:
        """A new one, ended when all is done."""
        stream = self.made("create_stream", device)
        yield stream
        self.synchronize_stream(device, stream)
        self.destroy_stream(device, stream)

    @contextmanager
    def event(self, device: int = 0) -> Iterator[int]:
        event = self.made("create_event", device)
        yield event
        self.destroy_event(device, event)

    @contextmanager
    def memory(self, size: int, device: int = 0, host: bool = False) -> Iterator[int]:
        """Bytes of the device, or pinned ones of the host."""
        end = "_host" if host else ""
        memory = self.made(f"allocate{end}", device, size)
        yield memory
        getattr(self, f"free{end}")(device, memory)


def use(device: Device) -> None:
    """Tensors of its device_type are its own from now on, once and for all."""
    library = _library()
    if library.AnyopUseDevice(ctypes.byref(device.table)):
        raise ValueError(library.AnyopLastError().decode())


class Missing(Exception):
    """The table has no such function."""
