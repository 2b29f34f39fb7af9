# SPDX-License-Identifier: Apache-2.0
"""torch.anyop: which devices there are, which is current, and what they are."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch

from anyop.torch.device._place import Place, index, name

__all__ = [
    "_exchange_device",
    "_is_compiled",
    "_is_in_bad_fork",
    "_lazy_init",
    "_maybe_exchange_device",
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "set_device",
    "synchronize",
]

_ops = torch.ops.anyop_device
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return not _forked and device_count() > 0


def is_initialized() -> bool:
    """Whether the device was started; it was, or torch.anyop were still asleep."""
    return not _forked


def init() -> None:
    """Start the device; nothing is left to do."""


def _lazy_init() -> None:
    """Torch calls it before the first tensor is made."""


def _is_compiled() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    """In a child of a process that used the device: its streams' threads are not there."""
    return _forked


def device_count() -> int:
    """How many there are."""
    return _ops.device_count.default()


def current_device() -> int:
    """Number of the calling thread's current device."""
    return _ops.current_device.default()


def set_device(device: Place) -> None:
    """Make it the calling thread's current one; a negative number changes nothing."""
    if not (isinstance(device, int) and device < 0):
        _ops.set_device.default(index(device))


def _exchange_device(device: int) -> int:
    return _ops.exchange_device.default(device)


_maybe_exchange_device = _exchange_device  # a negative number changes nothing


class device:  # noqa: N801, the name in torch.cuda
    """Context manager: inside, this device is the current one. None and negative numbers change nothing."""

    def __init__(self, device: Place) -> None:
        unchanged = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if unchanged else index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _ops.exchange_device.default(self.idx)

    def __exit__(self, *error: Any) -> None:
        self.idx = _ops.exchange_device.default(self.prev_idx)


class device_of(device):  # noqa: N801, the name in torch.cuda
    """The same with the device of a tensor or storage; nothing for those of other devices."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device.index if obj.device.type == name() else None)


def synchronize(device: Place = None) -> None:
    """Wait for all work on all streams of the device."""
    _ops.synchronize.default(index(device))


_PROPERTIES = (
    "name",
    "total_memory",
    "multi_processor_count",
    "major",
    "minor",
    "host_accessible",
)


class _Properties(SimpleNamespace):
    """name, total_memory and what else the platform tells."""


def get_device_properties(device: Place = None) -> Any:
    """What the platform tells of it: name, total_memory and more. Of CUDA devices, what torch.cuda tells."""
    at = index(device)
    if _is_cuda():
        return torch.cuda.get_device_properties(at)
    return _Properties(**dict(zip(_PROPERTIES, _ops.properties.default(at))))


def _is_cuda() -> bool:
    return _ops.platform.default() == "cuda"


def get_device_name(device: Place = None) -> str:
    """The platform's text."""
    return get_device_properties(device).name


def get_device_capability(device: Place = None) -> tuple[int, int]:
    """Of CUDA devices, their compute capability; (0, 0) of others."""
    found = get_device_properties(device)
    return getattr(found, "major", 0), getattr(found, "minor", 0)


def can_device_access_peer(device: Place, peer_device: Place) -> bool:
    """Whether copies between the two need no third memory. On platforms other than CUDA they do not."""
    one, other = index(device), index(peer_device)
    if _is_cuda():
        return torch.cuda.can_device_access_peer(one, other)
    return one != other


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Torch's CPU and CUDA kernels compute in bfloat16."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What torch.autocast may be asked for."""
    return [torch.bfloat16, torch.float16]


def ipc_collect() -> None:
    """Nothing is kept for other processes."""
