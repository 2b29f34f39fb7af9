# SPDX-License-Identifier: Apache-2.0
"""Lists, verifies and cleans the cache."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass

from anyop.cache.lock import release, try_lock
from anyop.cache.lookup import check_entry
from anyop.cache.manifest import Manifest, read_manifest
from anyop.cache.place import cache_dir, check_private, make_private
from anyop.cache.store import delete, remove_entry, sweep

# Nothing else below `entries` is touched: the cache may lie in a folder that has one for another purpose.
_STEM = re.compile(r"-[0-9a-f]{40}$")
_LOCK = re.compile(r"-[0-9a-f]{40}\.lock$")
_VARIANT = re.compile(r"[0-9a-f]{13}-[0-9a-f]{8}")


@dataclass
class Entry:
    """A folder of the cache; manifest is None where it cannot be read."""

    path: str
    manifest: Manifest | None
    size_bytes: int
    built: float  # seconds since 1970

    @property
    def name(self) -> str:
        """Of the library."""
        return (
            self.manifest.name
            if self.manifest
            else os.path.basename(os.path.dirname(self.path)).rsplit("-", 1)[0]
        )


def entries() -> list[Entry]:
    """All, oldest first."""
    found = []
    root = os.path.join(cache_dir(), "entries")
    for stem in filter(_STEM.search, _names(root)):
        for variant in filter(_VARIANT.fullmatch, _names(os.path.join(root, stem))):
            path = os.path.join(root, stem, variant)
            manifest = read_manifest(path)
            found.append(
                Entry(
                    path, manifest, size_bytes(path), manifest.built if manifest else _changed(path)
                )
            )
    return sorted(found, key=lambda entry: (entry.built, entry.path))


def problem(entry: Entry) -> str | None:
    """Why an entry would not be loaded, None when it is whole. What it was built from is not asked."""
    stem = os.path.dirname(entry.path)
    try:
        for folder in (cache_dir(), os.path.dirname(stem), stem, entry.path):
            check_private(folder)
        return check_entry(entry.path, entry.manifest)
    except OSError as error:
        return str(error)


def clean(older_seconds: float | None = None, most_bytes: int | None = None) -> list[Entry]:
    """Remove entries: damaged ones, those built longer ago, then the oldest until the rest is small enough; all
    where neither is given. What killed builds left goes too. Returns what was removed.
    """
    root, found = cache_dir(), entries()
    keep_all = older_seconds is None and most_bytes is None
    doomed = [
        entry for entry in found if keep_all or problem(entry) or _is_older(entry, older_seconds)
    ]
    gone = {entry.path for entry in doomed}
    kept = [entry for entry in found if entry.path not in gone]
    size = sum(entry.size_bytes for entry in kept)
    while most_bytes is not None and size > most_bytes:
        doomed.append(kept.pop(0))
        size -= doomed[-1].size_bytes
    if doomed:
        make_private(os.path.join(root, "building"))
    for entry in doomed:
        with contextlib.suppress(FileNotFoundError):  # another clean-up was faster
            remove_entry(root, entry.path)
    _tidy(root)
    for folder in ("triton", "opencl"):
        _clean_images(os.path.join(root, folder), older_seconds, keep_all)
    return doomed


def _clean_images(folder: str, older_seconds: float | None, every: bool) -> None:
    """Triton's and OpenCL's, which are no entries: one file for each kind of call."""
    for name in _names(folder):
        path = os.path.join(folder, name)
        if name.endswith((".img", ".bin", ".part")):
            with contextlib.suppress(FileNotFoundError):
                if every or _age_is_over(os.stat(path).st_mtime, older_seconds):
                    os.unlink(path)


def size_bytes(folder: str) -> int:
    """Of all files below it."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(path, name)).st_size
    return size


def _tidy(root: str) -> None:
    """Folders that are empty, locks that nobody holds, private folders whose process is gone."""
    for stem in filter(_STEM.search, _names(os.path.join(root, "entries"))):
        try:
            os.rmdir(os.path.join(root, "entries", stem))
        except OSError:
            continue
    for name in filter(_LOCK.search, _names(os.path.join(root, "locks"))):
        path = os.path.join(root, "locks", name)
        try:
            handle = try_lock(path)
        except OSError:  # no lock of ours: a build says so
            continue
        if handle is not None:
            # While it is held: a process that opened it meanwhile sees that it is gone.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            release(handle)
    building = os.path.join(root, "building")
    if os.path.isdir(building):
        sweep(building)
        for name in _names(building):
            if name.startswith("removed-"):
                delete(os.path.join(building, name))


def _is_older(entry: Entry, seconds: float | None) -> bool:
    return _age_is_over(entry.built, seconds)


def _age_is_over(since: float, seconds: float | None) -> bool:
    return seconds is not None and time.time() - since > seconds


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0.0
