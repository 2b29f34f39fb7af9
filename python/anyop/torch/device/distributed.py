# SPDX-License-Identifier: Apache-2.0
"""Tells torch.distributed which backends carry tensors of the device: those that carry the inner device's."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from anyop._when_imported import when_imported
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
    when_imported("torch.distributed.checkpoint.filesystem", _lend_to_checkpoints)


def _inner() -> str | None:
    """The device of torch that reads the same memory."""
    ops = torch.ops.anyop_device
    if ops.platform.default() == "cuda":
        return "cuda"
    *_, host_accessible = ops.properties.default(0)
    return "cpu" if host_accessible else None


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
            if device.type == name():
                device = torch.device("cuda", device.index)
                _bind(self, device)
            connect(self, device)

        setattr(nccl, method, call)

    for method in ("eager_connect_single_device", "perform_nocolor_split"):
        if hasattr(nccl, method):
            bound(method)


def _bind(backend: distributed.Backend, device: torch.device) -> None:
    """The backend compares its tensors' devices with the one that it is bound to, which only a group can tell it."""
    group = distributed.ProcessGroup(distributed.HashStore(), 0, 1)
    group.bound_device_id = device
    group._register_backend(device, distributed.ProcessGroup.BackendType.NCCL, backend)


def _lend_to_checkpoints(module: Any) -> None:
    """Torch copies tensors of one kind of device to the CPU, CUDA's where there is CUDA: ours it gets as those."""
    loader = getattr(module, "_OverlappingCpuLoader", None)
    if loader is None:
        return
    start, to_inner = loader.__init__, torch.ops.anyop_device.inner.default

    def init(self: Any, resolve_fun: Any, *args: Any, **options: Any) -> None:
        def resolve(item: Any) -> torch.Tensor:
            tensor = resolve_fun(item).detach()
            is_foreign = tensor.device.type == name() != self.device_type
            return to_inner(tensor) if is_foreign else tensor

        start(self, resolve, *args, **options)

    loader.__init__ = init
