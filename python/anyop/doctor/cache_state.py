# SPDX-License-Identifier: Apache-2.0
"""The cache of built libraries: where it is, how full, and whether it can be written."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator

from anyop.cache import maintenance
from anyop.cache.place import VARIABLE, cache_dir, check_private
from anyop.doctor.finding import MISSING, NOTE, OK, PROBLEM, Finding

_GROUP = "cache"
_ANOTHER = f"export {VARIABLE}=/a/folder/of/yours"
_SECONDS = 1.0  # of looking for damage
_LOW_BYTES = 200 << 20


def findings() -> Iterator[Finding]:
    """Its place first; the rest only where there is one."""
    try:
        folder = cache_dir()
    except ValueError as error:
        yield Finding(_GROUP, "place", PROBLEM, str(error), f"unset {VARIABLE}", needed=True)
        return
    yield _place(folder)
    if os.path.isdir(folder):
        yield from _contents()
    yield from _space(folder)


def _place(folder: str) -> Finding:
    quoted = shlex.quote(folder)
    above = _existing(folder)
    if not os.path.isdir(above):
        return Finding(_GROUP, "place", PROBLEM, f"{above} is a file", _ANOTHER, needed=True)
    if not os.access(above, os.W_OK | os.X_OK):
        text = f"{folder}: {above} cannot be written; what is in the cache already can be loaded"
        return Finding(_GROUP, "place", PROBLEM, text, _ANOTHER, needed=True)
    if above == folder:
        try:
            check_private(folder)
        except PermissionError as error:
            return Finding(
                _GROUP, "place", PROBLEM, str(error), f"chmod go-w {quoted}", needed=True
            )
        return Finding(_GROUP, "place", OK, folder, needed=True)
    return Finding(_GROUP, "place", OK, f"{folder}, made by the first build", needed=True)


def _existing(folder: str) -> str:
    """The folder, or the nearest above it that is there."""
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def _contents() -> Iterator[Finding]:
    """Entries and bytes; damaged ones, as far as they can be read within a second."""
    until, found = time.monotonic() + _SECONDS, maintenance.entries()
    size = sum(entry.size_bytes for entry in found)
    yield Finding(_GROUP, "contents", OK, f"{len(found)} libraries, {size / 1e6:.1f} MB")
    damaged = 0
    for entry in reversed(found):  # the newest first
        damaged += maintenance.problem(entry) is not None
        if time.monotonic() > until:
            break
    if damaged:
        text = f"{damaged} are damaged and will be built anew"
        yield Finding(_GROUP, "damaged", PROBLEM, text, "anyop cache verify")


def _space(folder: str) -> Iterator[Finding]:
    found = os.statvfs(_existing(folder))
    free = found.f_bavail * found.f_frsize
    if free < _LOW_BYTES:
        text = f"{free / 1e6:.0f} MB are free on its disk"
        yield Finding(
            _GROUP,
            "disk",
            MISSING if free < 1 << 20 else NOTE,
            text,
            "anyop cache clean --older 30d",
            free < 1 << 20,
        )
    if found.f_files and not found.f_favail:
        yield Finding(
            _GROUP,
            "disk",
            MISSING,
            "no inode is free on its disk",
            "anyop cache clean --older 30d",
            True,
        )
