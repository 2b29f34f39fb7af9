# SPDX-License-Identifier: Apache-2.0
"""Torch's name for the device, and the module torch.anyop that starts the device when it is first used.

The entry point of the distribution anyop-device runs this file by its path at `import torch`, without the package
anyop, and device_file.py likewise: only torch and the standard library are imported here, in some milliseconds.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

VARIABLE = "ANYOP_DEVICE_NAME"
LIBRARY = "_anyop_library"  # attribute of torch.anyop: path of what is loaded
_UNNAMED = "privateuseone"
_SEED = "_anyop_seed"


def device_name() -> str:
    """What the device is to be called. Raises ValueError for a name that torch cannot take."""
    name = os.environ.get(VARIABLE) or "anyop"
    if not re.fullmatch("[a-z_]+", name) or name == _UNNAMED:
        raise ValueError(f"{VARIABLE} is {name!r}, expected letters a-z")
    if isinstance(vars(torch).get(name), _StandIn):
        return name
    if hasattr(torch, name) or hasattr(torch.Tensor, name):
        raise ValueError(f"{VARIABLE} is {name!r}, which torch has already")
    return name


def registered() -> DeviceModule | None:
    """torch.anyop where this device has torch's name for it already. Raises RuntimeError where another one has."""
    name = torch._C._get_privateuse1_backend_name()
    if name == _UNNAMED:
        return None
    module: Any = sys.modules.get(f"torch.{name}")
    if module is None or LIBRARY not in vars(module):
        raise RuntimeError(taken(name))
    return module


def taken(other: str) -> str:
    """What to do where another backend was faster."""
    return (
        f"anyop's device cannot be made: torch has one device for backends from outside (PrivateUse1), and here it is "
        f"{other!r}; anyop.torch.overlay routes operators beside any backend"
    )


def register(name: str, library: str) -> DeviceModule:
    """Give the device its name in torch, its module, and the methods of tensors and modules."""
    vars(torch).pop(name, None)  # the stand-in
    torch.utils.rename_privateuse1_backend(name)
    module = DeviceModule(f"torch.{name}", "Devices of anyop, as torch.cuda those of CUDA.")
    vars(module)[LIBRARY] = library
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    return module


class DeviceModule(types.ModuleType):
    """torch.anyop: asleep until anything of it is needed; then anyop.torch.device fills it."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            if "_lazy_init" not in vars(self):
                self._lazy_init()
                return getattr(self, name)
            if name in vars(self):  # another thread has filled it since Python looked here in vain
                return vars(self)[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _lazy_init(self) -> None:
        """Torch calls it before the first tensor is made."""
        importlib.import_module("anyop.torch.device")

    def is_initialized(self) -> bool:
        """Whether the device was started."""
        return False

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Kept until the device starts: torch.manual_seed calls this in every program."""
        vars(self)[_SEED] = int(seed)

    def is_available(self) -> bool:
        """Whether there is a device that can be used; never raises."""
        try:
            self._lazy_init()
        except Exception:
            return False
        return vars(self)["is_available"]()


def wake(module: DeviceModule, parts: dict[str, Any]) -> None:
    """Fill torch.anyop. It is awake from here on, for a class's method is found behind the module's own."""
    vars(module).update(
        parts, _initialized=True
    )  # which checkpoint asks before it keeps random numbers
    if _SEED in vars(module):
        module.manual_seed_all(vars(module).pop(_SEED))


def autoload(package: str, others: Iterable[str], run: Callable[..., Any]) -> str | None:
    """Load and name the device where its library is there and nobody else wants the place; else say why not.

    package is anyop's folder; others are the backends that torch loads next; run(*path) gives a module of the package
    by itself. Raises OSError, RuntimeError, ValueError.
    """
    file = run("native", "device_file.py")
    if os.environ.get(file.VARIABLE) == "0":
        return f"{file.VARIABLE}=0 says to do without"
    file.check_torch()
    if registered() is not None:
        return None
    if names := ", ".join(others):
        return f"{taken(names)}; import anyop.torch.device takes the place for anyop"
    name = device_name()
    found = file.find_made(package, lambda: run("cache", "place.py"))
    if found is None:
        return f"the PyTorch device for torch {torch.__version__} is not built: run `anyop build-device` once"
    file.open_library(*found)
    torch.ops.anyop_device.claim()
    _let_groups_wake(register(name, found[0]), name)
    return None


def _let_groups_wake(module: DeviceModule, name: str) -> None:
    """init_process_group() asks which backend carries the device before any tensor is made."""
    groups = sys.modules.get("torch.distributed.distributed_c10d")  # not in a torch without it
    if groups is not None:
        known = groups.Backend.default_device_backend_map
        groups.Backend.default_device_backend_map = _WakingMap(module, name, known)


class _WakingMap(dict):
    """By device, the backend of torch.distributed; anyop.torch.device adds that of a device which is awake."""

    def __init__(self, module: DeviceModule, device: str, known: dict[str, str]) -> None:
        super().__init__(known)
        self._module, self._device = module, device

    def __missing__(self, device: str) -> str:
        if device == self._device:
            self._module._lazy_init()
        if device in self:
            return self[device]
        raise KeyError(device)

    def get(self, device: str, default: Any = None) -> Any:
        try:
            return self[device]
        except KeyError:
            return default


def stand_in(why: str) -> None:
    """Let torch.anyop, and the error that ends a program for device="anyop", name the cure."""
    name = os.environ.get(VARIABLE) or "anyop"
    if not hasattr(torch, name):
        setattr(torch, name, _StandIn(f"torch.{name}", why))
    show = sys.excepthook

    def show_and_tell(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        show(kind, error, trace)
        if re.search(rf"at start of device string: {re.escape(name)}\b", str(error)):
            print(f"anyop: {why}", file=sys.stderr)

    sys.excepthook = show_and_tell


class _StandIn(types.ModuleType):
    """torch.anyop where there is no device; its docstring says why."""

    def is_available(self) -> bool:
        """No."""
        return False

    def device_count(self) -> int:
        """None."""
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}: {self.__doc__}")
