# SPDX-License-Identifier: Apache-2.0
"""Starts the device: finds and loads its library, registers its kernels, names it, fills torch.anyop."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch

from anyop.native import device as device_library
from anyop.native import device_module
from anyop.torch import overload_backends
from anyop.torch.device import distributed, dlpack
from anyop.torch.device.compile import install as install_compile

PLATFORM = "ANYOP_DEVICE_PLATFORM"
NATIVE_CUDA = (  # https://github.com/pytorch/pytorch/issues/161129
    "with the device {name}, torch runs no backward of native cuda tensors in this process; keep what is trained on"
    " {name}, or use anyop.torch.overlay, which routes operators of cuda tensors without a device of its own"
)


def start() -> None:
    """Once, when anyop.torch.device is imported. Raises ImportError that says what to do."""
    try:
        module = device_module.registered()
        name = device_module.device_name() if module is None else None
        library = device_library.load() if module is None else None
        torch.ops.anyop_device.start(_platform())
        if module is None:
            module = device_module.register(name, library)
    except (OSError, RuntimeError, ValueError) as error:
        raise ImportError(f"anyop.torch.device: {_text(error)}") from error
    device_module.wake(module, _parts(module.__name__))
    overload_backends.tell()
    distributed.register()
    dlpack.install()
    install_compile()
    if torch.cuda.device_count():
        warnings.warn(NATIVE_CUDA.format(name=module.__name__[6:]), RuntimeWarning, stacklevel=2)


def _platform() -> str:
    """What the variable says, or cuda where there is one; "" leaves it to the library.

    To count devices, torch asks the driver beside CUDA: a process that has only loaded the device may fork.
    """
    wanted, count = os.environ.get(PLATFORM, ""), torch.cuda.device_count()
    if wanted == "cuda" and not count:
        raise RuntimeError("the platform cuda needs a torch with CUDA, and a CUDA device")
    return wanted or ("cuda" if count else "")


def _parts(module: str) -> dict[str, Any]:
    """What torch.anyop consists of."""
    from anyop.torch.device import amp, management, memory, random, streams

    parts: dict[str, Any] = {"amp": amp, "memory": memory, "random": random, "streams": streams}
    for part, found in parts.items():
        sys.modules[f"{module}.{part}"] = found
    for found in (management, memory, random, streams):
        parts.update((name, getattr(found, name)) for name in found.__all__)
    return parts


def _text(error: Exception) -> str:
    """Without torch's C++ frames."""
    return str(error).split("\nException raised from", 1)[0]
