# SPDX-License-Identifier: Apache-2.0
"""Finds an entry of the cache: no lock, nothing written, no compiler. Imports little: programs do this at their
start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from anyop.cache.dependencies import unchanged
from anyop.cache.manifest import Manifest, damaged_file, read_manifest
from anyop.cache.place import cache_dir, check_private, is_foreign, is_open

# No such folder, or removed by a clean-up; a link that leads nowhere.
_NONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Request:
    """What is wanted. find_tool: role -> the command on this machine, or None where there is none: then any will do."""

    def __init__(self, name: str, key: str, find_tool: Callable[[str], list[str] | None]) -> None:
        self.name, self.key, self.find_tool = name, key, find_tool

    @property
    def stem(self) -> str:
        """Name of its folder and of its lock."""
        return f"{self.name}-{self.key[:40]}"


def find(request: Request) -> str | None:
    """Path of the library of a whole, fitting entry. Takes no lock, writes nothing. Raises PermissionError,
    ValueError.
    """
    for folder in variants(request):
        manifest = read_manifest(folder)
        if manifest and fits(manifest, request) and check_entry(folder, manifest) is None:
            return os.path.join(folder, manifest.library)
    return None


def variants(request: Request) -> Iterator[str]:
    """Folders of entries with the request's key, newest first."""
    folder = os.path.join(cache_dir(), "entries", request.stem)
    try:
        names = os.listdir(folder)
        for private in (cache_dir(), os.path.dirname(folder), folder):
            check_private(private)
    except OSError as error:
        if error.errno in _NONE:
            return
        raise
    for name in sorted(names, reverse=True):
        path = os.path.join(folder, name)
        try:
            check_private(path)
        except OSError as error:
            if error.errno in _NONE:
                continue
            raise
        yield path


def fits(manifest: Manifest, request: Request) -> bool:
    """Whether it answers this request, every file that the build read is what it was, and the compilers are those of
    this machine.
    """
    if manifest.key != request.key:
        return False
    for role, tool in manifest.tools.items():
        command = request.find_tool(role)
        if command is not None and not (tool.command == command and tool.unchanged()):
            return False
    return all(map(unchanged, manifest.dependencies))


def check_entry(folder: str, manifest: Manifest | None) -> str | None:
    """Why the entry must not be loaded: what is damaged, or that others can write to it. None when it is whole."""
    if manifest is None:
        return "its manifest is damaged"
    for name in manifest.files:
        try:
            found = os.stat(os.path.join(folder, name))
        except OSError as error:
            return f"{name}: {error.strerror}"
        if is_foreign(found) or is_open(found):
            return f"{name} can be written by others"
    damaged = damaged_file(folder, manifest)
    return None if damaged is None else f"{damaged} is not what was built"
