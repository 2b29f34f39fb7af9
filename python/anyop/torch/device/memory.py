# SPDX-License-Identifier: Apache-2.0
"""torch.anyop: what the caching allocator holds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from anyop.torch.device._place import Place, index, name

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
]

_ops = torch.ops.anyop_device


def memory_stats(device: Place = None) -> OrderedDict[str, int]:
    """All statistics of a device by the names that torch.cuda.memory_stats uses."""
    return OrderedDict(zip(_names(), _ops.memory_stats.default(index(device))))


def _names() -> list[str]:
    """All counts are of all pools together."""
    parts = (name.split(".") for name in _ops.memory_stat_names.default())
    return [".all.".join(part) for part in parts]


def memory_stats_as_nested_dict(device: Place = None) -> dict[str, Any]:
    """The same, a dictionary for each part of a name."""
    found: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        at = found
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return found


def memory_allocated(device: Place = None) -> int:
    """Bytes that tensors hold."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Place = None) -> int:
    """The most they held since the start, or since reset_peak_memory_stats."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Place = None) -> int:
    """Bytes that the allocator holds for tensors, used or not."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Place = None) -> int:
    """The most it held since the start, or since reset_peak_memory_stats."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Place = None) -> None:
    """Peaks begin anew from what is held now."""
    _ops.reset_peak_memory_stats.default(index(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Place = None) -> None:
    """Counters of all allocations so far begin anew."""
    torch.accelerator.reset_accumulated_memory_stats(index(device))


def empty_cache() -> None:
    """Give back what is reserved and not used."""
    _ops.empty_cache.default()


def mem_get_info(device: Place = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    at = index(device)
    if _ops.platform.default() == "cuda":
        return torch.cuda.mem_get_info(at)
    free, total = _ops.memory_info.default(at)
    return free, total


def memory_summary(device: Place = None, abbreviated: bool = False) -> str:
    """The statistics as a table."""
    at = index(device)
    lines = [f"memory of {name()}:{at}"]
    for key, value in memory_stats(at).items():
        if not abbreviated or key.split(".")[-2:-1] == ["all"]:
            lines.append(f"  {key:<44}{value:>20,}")
    return "\n".join(lines)
