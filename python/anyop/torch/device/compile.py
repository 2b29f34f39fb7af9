# SPDX-License-Identifier: Apache-2.0
"""torch.compile on the device: Dynamo learns its interface, inductor compiles its graphs for the inner device.

Dynamo takes almost as long to import as torch: it is told when it is there, not before.
"""

from __future__ import annotations

from types import ModuleType

import torch

from anyop._when_imported import when_imported
from anyop.torch.device import traced_attention
from anyop.torch.device._place import name

_ops = torch.ops.anyop_device


def install() -> None:
    """Once, when the device is started; imports nothing of torch's."""
    traced_attention.install()
    when_imported("torch._dynamo.device_interface", _tell_dynamo)
    when_imported("torch._inductor.compile_fx", _tell_inductor)


def _tell_dynamo(module: ModuleType) -> None:
    from anyop.torch.device.dynamo_interface import interface

    for device in [name(), *(f"{name()}:{i}" for i in range(_ops.device_count.default()))]:
        module.register_interface_for_device(device, interface(module))


def _tell_inductor(module: ModuleType) -> None:
    from anyop.torch.device import inductor_compile

    inductor_compile.wrap(module)
