# SPDX-License-Identifier: Apache-2.0
"""Tells torch.distributed which backends carry tensors of the device: those that carry the inner device's."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import distributed

from anyop.torch.device._place import name


def register() -> None:
    """So that init_process_group("gloo"), ("nccl"), ("cpu:gloo,anyop:gloo") and () serve the device.

    Groups that are there already are told, too. A vendor whose memory torch cannot read registers a backend for it.
    """
    inner = _inner()
    if inner is None or not distributed.is_available():
        return
    backend = distributed.Backend
    for devices in backend.backend_capability.values():
        if inner in devices and name() not in devices:
            devices.append(name())
    backend.default_device_backend_map.setdefault(name(), backend.default_device_backend_map[inner])
    for group in distributed.distributed_c10d._world.pg_map:
        _add(group, torch.device(inner), torch.device(name()))
    if inner == "cuda" and distributed.is_nccl_available():
        _bind_by_number(distributed.ProcessGroupNCCL)


def _inner() -> str | None:
    """The device of torch that reads the same memory."""
    ops = torch.ops.anyop_device
    if ops.platform.default() == "cuda":
        return "cuda"
    return "cpu" if json.loads(ops.properties.default(0))["host_accessible"] else None


def _add(group: distributed.ProcessGroup, inner: torch.device, outer: torch.device) -> None:
    """Let the group's backend of the inner device be that of this one."""
    kinds = {device.type for device in group._device_types}
    if inner.type in kinds and outer.type not in kinds:
        carrier = group._get_backend(inner)
        kind = distributed.Backend.backend_type_map.get(carrier.name())
        if kind is not None:
            group._register_backend(outer, kind, carrier)


def _bind_by_number(nccl: type) -> None:
    """init_process_group(device_id=...) has NCCL connect at once, which it can to a device of CUDA."""

    def bound(method: str) -> None:
        connect = getattr(nccl, method)

        def call(self: Any, device: torch.device) -> None:
            connect(self, torch.device("cuda", device.index) if device.type == name() else device)

        setattr(nccl, method, call)

    for method in ("eager_connect_single_device", "perform_nocolor_split"):
        if hasattr(nccl, method):
            bound(method)
