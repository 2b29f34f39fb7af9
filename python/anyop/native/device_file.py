# SPDX-License-Identifier: Apache-2.0
"""The library of the PyTorch device as a file: where it is, whether it is whole and for this torch; loads it.

Run by its path, too, as device_module.py is: only torch and the standard library are imported here.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

OLDEST = (2, 9)  # of torch; as anyop.torch
VARIABLE = "ANYOP_TORCH_DEVICE"


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


def find_made(package: str, read_place: Callable[[], Any]) -> tuple[str, str] | None:
    """The library of the variable, the package or the cache, and libanyop."""
    libanyop = os.path.join(package, "lib", "libanyop.so")
    if named := os.environ.get(VARIABLE):
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


# ---- the note in the cache that says where the library is ----


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
