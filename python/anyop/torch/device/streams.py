# SPDX-License-Identifier: Apache-2.0
"""torch.anyop: streams and events, as torch.Stream and torch.Event of this device."""

from __future__ import annotations

from typing import Any

import torch

from anyop.torch.device._place import Place, index, name

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "_set_stream_by_id",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]

_DEFAULT = 0  # the id of every device's default stream


class Stream(torch.Stream):
    """A queue of work on a device, the current one by default; a lower priority is served first."""

    def __new__(cls, device: Place = None, priority: int = 0, **which: int) -> Stream:
        if which:  # stream_id, device_index, device_type: one that is there
            return super().__new__(cls, priority=priority, **which)
        place = torch.device(name(), index(device))
        return super().__new__(cls, device=place, priority=priority)


# Of the current accelerator, which this device is; elapsed_time of torch.Event takes no class of its own.
Event = torch.Event


class StreamContext:
    """Context manager: inside, the stream and its device are current. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self._device = current_stream()
            self._before = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            set_stream(self._before)
            set_stream(self._device)  # sets the device too


def stream(stream: torch.Stream | None) -> StreamContext:
    """The context manager that makes the stream current."""
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Make the stream and its device current."""
    if stream is not None:
        index(stream.device)  # refuses other devices' streams
        torch.accelerator.set_stream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def current_stream(device: Place = None) -> Stream:
    """The one that work of the calling thread goes to."""
    return _wrap(torch.accelerator.current_stream(index(device)))


def default_stream(device: Place = None) -> Stream:
    """The one that is current where no other was chosen."""
    return _wrap(torch.accelerator.current_stream(index(device)), _DEFAULT)


def _wrap(found: torch.Stream, stream_id: int | None = None) -> Stream:
    return Stream(
        stream_id=found.stream_id if stream_id is None else stream_id,
        device_index=found.device_index,
        device_type=found.device_type,
    )
