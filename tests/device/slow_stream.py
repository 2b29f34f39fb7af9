# SPDX-License-Identifier: Apache-2.0
"""Holds the device's current stream up for a time, so that tests can see what waits for it; the caller goes on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from anyop.conformance.device_table import Device

CYCLES = 2_000_000  # of a millisecond of a chip at 2 GHz; slower ones wait longer


@cache
def plugin(name: str) -> tuple[Device, ctypes.c_void_p]:
    """The table below the device, and what it lets the stream call: usleep takes its one number in a register."""
    return Device(name), ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)


def sleep(milliseconds: int) -> None:
    import torch

    stream = torch.accelerator.current_stream()
    name = torch.ops.anyop_device.platform()
    if name == "cuda":
        torch.cuda._sleep(milliseconds * CYCLES)
        return
    device, usleep = plugin(name)
    device.launch_host(stream.device_index, stream.stream_id, usleep, milliseconds * 1000)


def while_it_sleeps(work: Callable[[], bool]) -> bool:
    """Calls work behind something long on the current stream, until it says that it was done before that ended.

    A busy machine may itself take as long, and gets some chances; what waits for the stream never says so.
    """
    import torch

    for milliseconds in (150, 600, 2400):
        sleep(milliseconds)
        if work():
            return True
        torch.accelerator.synchronize()
    return False
