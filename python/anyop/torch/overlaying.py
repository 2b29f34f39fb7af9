# SPDX-License-Identifier: Apache-2.0
"""anyop.torch.overlay: the routes of ATen's overloads for tensors of cpu and cuda, beside any backend."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from anyop.torch import overload_backends

_KINDS = ("aten", "native", "cpu_fallback", "other")


def overlay(
    ops: str | Iterable[str] | None = None, device: str | None = None, *, route: str = ""
) -> Overlay:
    """Route overloads of ATen's for tensors that torch has kernels for; on from now until off().

        anyop.load_routes("my.routes")            # aten.mm = native, aten
        with anyop.torch.overlay(["mm", "add.Tensor"]):
            model(x)

    ops:     "mm" means all overloads of mm; None: all that the rules in force name.
    device:  "cpu" or "cuda"; None: both, where torch has CUDA.
    route:   backends for these overloads, as in a route file, "native, aten"; "" leaves it to the rules, which are
             followed as they change. "aten" is torch's own kernel.

    An overlay is of the process: all threads see it. Where several name an overload, the latest that has a route says
    it. Gradients are ATen's own, above the overloads. Overloads that torch makes of others (linear, matmul) have no
    kernel to lie over: ValueError says so. The first use for a version of torch builds a library, as
    anyop.torch.device does; PyTorch's place for a device is not taken.
    """
    names = [ops] if isinstance(ops, str) else list(ops or ())
    if ops is not None and not names:
        raise ValueError("anyop.torch.overlay: ops is empty")
    for op in names:
        if not overload_backends.is_name(op):
            raise ValueError(overload_backends.unknown(op))
    overload_backends.load_library()
    devices = ["cpu", *["cuda"][: torch.cuda.is_available()]] if device is None else [device]
    return Overlay(names, devices, route)


class Overlay:
    """An overlay that is on; as a context manager it goes off at the end."""

    def __init__(self, ops: list[str], devices: list[str], route: str) -> None:
        self._numbers: list[int] = []
        self.devices = tuple(devices)
        try:
            for device in devices:
                self._numbers.append(torch.ops.anyop_device.overlay(ops, device, route))
        except BaseException:
            self.off()
            raise

    def off(self) -> None:
        """Torch's own kernels are registered again where no other overlay is on. Calls under way end in theirs."""
        while self._numbers:
            torch.ops.anyop_device.overlay_off(self._numbers.pop())

    def __enter__(self) -> Overlay:
        return self

    def __exit__(self, *error: object) -> None:
        self.off()


def overlaid(device: str = "cpu") -> dict[str, str]:
    """The overloads that are under overlays, and their routes."""
    ops = torch.ops.anyop_device
    return {name: ops.overlaid_route(name, device) for name in ops.overlaid(device)}


def calls(op: str, device: str = "cpu") -> dict[str, int]:
    """How often each kind of backend served an overload under overlays, while anyop_device.count_calls was on."""
    return dict(zip(_KINDS, torch.ops.anyop_device.overlaid_calls(op, device)))
