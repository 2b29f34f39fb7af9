# SPDX-License-Identifier: Apache-2.0
"""PyTorch's device "anyop": ``import anyop.torch.device``, then ``torch.randn(4, device="anyop")``.

The first import for a version of torch builds a library with the C++ compiler, some 45 seconds on two cores;
`anyop build-device` does it beforehand. Where the package anyop-device is installed (``pip install anyop[device]``),
`import torch` is enough. torch.anyop has what torch.cuda has. Raises ImportError that says what to do.
"""

from __future__ import annotations

import torch

from anyop.torch.device import _start
from anyop.torch.device._place import name
from anyop.torch.overload_backends import register, unregister

_start.start()
_ops = torch.ops.anyop_device
_KINDS = ("aten", "native", "cpu_fallback", "other")


def platform() -> str:
    """What the devices are: "host", "cuda", or the name of a vendor's plugin."""
    return str(_ops.platform.default())


def registered_ops() -> list[str]:
    """ATen's overloads that have a kernel of the device, such as "add.Tensor" and "mm"."""
    return [*_ops.registered_ops.default()]


def backend_available(backend: str) -> bool:
    """Whether operators can be routed to it: aten, native, triton, flaggems, cpu_fallback."""
    return bool(_ops.backend_available.default(backend))


def route(op: str) -> str:
    """The backends that serve an overload, such as "add.Tensor". Raises ValueError for one the device does not have."""
    return str(_ops.route.default(_short(op)))


def set_route(op: str, backends: str) -> None:
    """From now on, these backends, in this order, serve an operator, such as ("mm", "native, aten").

    A name without overload means all its overloads; "" is what route files and variables say. Raises ValueError.
    """
    short = _short(op)
    overloads = [each for each in registered_ops() if each.split(".")[0] == short]
    for overload in overloads or [short]:
        _ops.set_route.default(overload, backends)


def count_calls(on: bool = True) -> None:
    """Let calls() count from now on; it costs some nanoseconds a call."""
    _ops.count_calls.default(on)


def calls(op: str) -> dict[str, int]:
    """How often each kind of backend served an overload while calls were counted."""
    return dict(zip(_KINDS, _ops.calls.default(_short(op))))


def _short(op: str) -> str:
    """Without the namespace."""
    return op.removeprefix("aten::").removeprefix("aten.")


__all__ = [
    "backend_available",
    "calls",
    "count_calls",
    "name",
    "platform",
    "register",
    "registered_ops",
    "route",
    "set_route",
    "unregister",
]


def __dir__() -> list[str]:
    """What users call, without the modules behind it."""
    return sorted({*__all__, *(name for name in globals() if name[:2] == "__")})
