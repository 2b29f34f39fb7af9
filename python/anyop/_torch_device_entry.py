# SPDX-License-Identifier: Apache-2.0
"""Torch's name for the device, and the module torch.anyop that starts the device when it is first used.

The entry point of the distribution anyop-device runs this file by its path at `import torch`, without the package
anyop: only torch and the standard library are imported here, and all of it takes some milliseconds.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import struct
import sys
import types
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

OLDEST = (2, 9)  # of torch; as anyop.torch
VARIABLE = "ANYOP_DEVICE_NAME"
LIBRARY = "_anyop_library"  # attribute of torch.anyop: path of what is loaded
_LIBRARY_VARIABLE = "ANYOP_TORCH_DEVICE"
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


def open_library(path: str, libanyop: str) -> None:
    """Load it, and libanyop, which it needs, before. Raises OSError, ValueError."""
    for library in (libanyop, path):
        check_whole(library)
        ctypes.CDLL(library)


def check_whole(library: str) -> None:
    """Raises ValueError for a file that was cut off, which would end the process (anyop/library_file.h); OSError."""
    with open(library, "rb", opener=_open_at_once) as stream:
        head, size = stream.read(64), stream.seek(0, os.SEEK_END)
        if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
            return  # the loader's to refuse
        table, sections = struct.unpack_from("<QQ", head, 32)
        _, count, section_bytes, section_count = struct.unpack_from("<4H", head, 54)
        stream.seek(min(table, size))
        parts = stream.read(56 * count)
    rows = struct.iter_unpack("<IIQQQQQQ", parts[: len(parts) // 56 * 56])
    ends = [sections + section_bytes * section_count, table + 56 * count]
    if max(*ends, *(row[2] + row[5] for row in rows)) > size:
        raise ValueError(f"{library} is cut off: it is shorter than its ELF headers say")


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


def check_torch() -> None:
    """Raises RuntimeError for a torch without what the device is made of."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RuntimeError(
            f"the PyTorch device needs torch {oldest} or newer; this is torch {torch.__version__}"
        )


def check_version(library: str) -> None:
    """Raises ValueError for a library of another torch, OSError. Before it is loaded: it would crash."""
    with open(library, "rb", opener=_open_at_once) as stream:
        found = re.search(rb"\0torch_device-([^\0/]+)\.so\0", stream.read())  # its DT_SONAME
    if found is None:
        raise ValueError(f"{library} is no library of anyop's device")
    version = found[1].decode("ascii", "replace")
    if version != torch.__version__:
        raise ValueError(f"{library} is for torch {version}, this is torch {torch.__version__}")


# ---- the note in the cache that tells the entry point where the library is ----


def note_path(cache: str, package: str) -> str:
    """Of the note for this torch and the anyop whose folder is package."""
    both = f"{package}\0{os.path.dirname(os.path.abspath(torch.__file__))}"
    name = f"{torch.__version__}-{zlib.crc32(both.encode()):08x}.json"
    return os.path.join(cache, "torch_device", name)


def write_note(path: str, files: Iterable[str]) -> None:
    """Files are the library, libanyop, and what the library was made from. Raises OSError."""
    states = [[file, _state(file)] for file in files]
    text = json.dumps({"torch": torch.version.git_version, "files": states})
    part = f"{path}.{os.getpid()}"
    with open(part, "w", encoding="utf-8", opener=_open_private) as stream:
        stream.write(text)
    os.replace(part, path)


def read_note(path: str) -> tuple[str, str] | None:
    """The library and libanyop; None where there is no note or one of its files has changed since."""
    try:
        with open(path, encoding="utf-8", opener=_open_at_once) as stream:
            note = json.load(stream)
        files = note["files"]
        if note["torch"] == torch.version.git_version and all(_state(f) == was for f, was in files):
            return files[0][0], files[1][0]
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None


def _open_at_once(path: str, flags: int) -> int:
    """Waits for nobody, should the path be a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _state(path: str) -> list[int]:
    """What changes with a file's contents: no program can set the time of change (ctime)."""
    found = os.stat(path)
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


# ---- what the entry point does ----


def autoload(package: str, others: Iterable[str], read_place: Callable[[], Any]) -> str | None:
    """Load and name the device where its library is there and nobody else wants the place; else say why not.

    package is anyop's folder; others are the backends that torch loads next; read_place gives anyop.cache.place.
    Raises OSError, RuntimeError, ValueError.
    """
    if os.environ.get(_LIBRARY_VARIABLE) == "0":
        return f"{_LIBRARY_VARIABLE}=0 says to do without"
    check_torch()
    if registered() is not None:
        return None
    if names := ", ".join(others):
        return f"{taken(names)}; import anyop.torch.device takes the place for anyop"
    name = device_name()
    found = _library(package, read_place)
    if found is None:
        return f"the PyTorch device for torch {torch.__version__} is not built: run `anyop build-device` once"
    open_library(*found)
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


def _library(package: str, read_place: Callable[[], Any]) -> tuple[str, str] | None:
    """The library of the variable, the package or the cache, and libanyop."""
    libanyop = os.path.join(package, "lib", "libanyop.so")
    if named := os.environ.get(_LIBRARY_VARIABLE):
        check_version(named)
        return named, libanyop
    shipped = os.path.join(package, "lib", f"torch_device-{torch.__version__}.so")
    if os.path.exists(shipped):
        return shipped, libanyop
    place = read_place()
    path = note_path(place.cache_dir(), package)
    if not os.path.exists(path):
        return None
    for private in (place.cache_dir(), os.path.dirname(path), path):
        place.check_private(private)
    return read_note(path)


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
