# SPDX-License-Identifier: Apache-2.0
"""Makes an entry of the cache: built in a private folder, written through, then renamed into place."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from anyop.cache.lock import locked, release, try_lock
from anyop.cache.lookup import Request, check_entry, find, variants
from anyop.cache.manifest import Manifest, read_manifest
from anyop.cache.place import VARIABLE, cache_dir, make_private

TIMEOUT = "ANYOP_BUILD_TIMEOUT"
_FULL = (errno.ENOSPC, errno.EDQUOT)  # a write says them without the file's name
_LONGEST_SECONDS = 7 * 86400.0  # of a build, where the file system has no locks
_OWNER = ".owner"  # in a private folder: locked by the process that builds there


def store(request: Request, make: Callable[[str], Manifest]) -> str:
    """Path of the library of a new entry, or of that of the process that was faster. See lookup.obtain."""
    root = cache_dir()
    for folder in (root, *(os.path.join(root, name) for name in ("entries", "locks", "building"))):
        make_private(folder)
    lock = os.path.join(root, "locks", f"{request.stem}.lock")
    with _writing(root), locked(lock, request.name, timeout_seconds()):
        return find(request) or _build(root, request, make)


def timeout_seconds() -> float:
    """How long a build may take and be waited for. Raises ValueError."""
    text = os.environ.get(TIMEOUT, "1800")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{TIMEOUT} is {text!r}, expected seconds, more than 0")
    return seconds


@contextmanager
def private_folder(root: str) -> Iterator[str]:
    """A new folder for one build, removed afterwards; those of processes that died go too."""
    building = os.path.join(root, "building")
    sweep(building)
    folder = os.path.join(building, f"{os.getpid()}-{secrets.token_hex(6)}")
    os.mkdir(folder, 0o700)
    owner = None
    try:
        owner = try_lock(os.path.join(folder, f"{_OWNER}.new"))
        os.rename(os.path.join(folder, f"{_OWNER}.new"), os.path.join(folder, _OWNER))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            release(owner)


def sweep(building: str) -> int:
    """Remove private folders whose process is gone; returns how many."""
    removed = 0
    for name in os.listdir(building):
        folder = os.path.join(building, name)
        owner = os.path.join(folder, _OWNER)
        try:
            age = time.time() - os.stat(folder).st_ctime
            if not os.path.exists(owner):  # killed before it was there, or about to be
                gone = age > 60
            else:
                handle = try_lock(owner, lockless=False)
                gone = handle is not None or age > _LONGEST_SECONDS
                if handle is not None:
                    release(handle)
        except OSError:
            continue
        if gone:
            with suppress(FileNotFoundError):  # another process sweeps too
                _remove(building, folder)
                removed += 1
    return removed


def _build(root: str, request: Request, make: Callable[[str], Manifest]) -> str:
    parent = os.path.join(root, "entries", request.stem)
    for folder in list(variants(request)):
        if check_entry(folder, read_manifest(folder)) is not None:
            with suppress(FileNotFoundError):  # a clean-up was faster
                remove_entry(root, folder)
    with private_folder(root) as folder:
        start = time.time()
        made = os.path.join(folder, "entry")
        os.mkdir(made, 0o700)
        manifest = make(folder)
        manifest.key = request.key
        manifest.built, manifest.built_seconds = time.time(), round(time.time() - start, 3)
        manifest.write(made)
        _write_through(made)
        # Sorted by time: the newest is looked at first.
        place = os.path.join(parent, f"{int(manifest.built * 1000):013x}-{secrets.token_hex(4)}")
        _move(made, place)
    return os.path.join(place, manifest.library)


def _move(made: str, place: str) -> None:
    """A clean-up may remove the folder above, while it is empty, and the new entry, at any moment."""
    parent = os.path.dirname(place)
    while True:
        try:
            make_private(parent)
            os.rename(made, place)
            break
        except FileNotFoundError:
            if not os.path.isdir(made):
                raise
    with suppress(FileNotFoundError):
        _write_through_folder(parent)


def remove_entry(root: str, folder: str) -> None:
    """Move an entry away, so that no reader sees half of it, then delete it."""
    _remove(os.path.join(root, "building"), folder)


def _remove(building: str, folder: str) -> None:
    away = os.path.join(building, f"removed-{secrets.token_hex(6)}")
    os.rename(folder, away)
    for _ in range(10):  # compilers of a killed build may still write there
        delete(away)
        if not os.path.lexists(away):
            return
        time.sleep(0.01)


def delete(path: str) -> None:
    """Delete a folder and all in it, or what else has its name: shutil.rmtree would wait for a pipe."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def _write_through(folder: str) -> None:
    """Flush every file and folder to the disk; only the user may change them."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            file = os.path.join(path, name)
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            os.fchmod(handle, 0o700 if name.endswith(".so") else 0o600)
            os.fsync(handle)
            os.close(handle)
        os.chmod(path, 0o700)
        _write_through_folder(path)


def _write_through_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(handle)
    os.close(handle)


@contextmanager
def _writing(root: str) -> Iterator[None]:
    """Name the variable in errors of a cache that cannot be written."""
    try:
        yield
    except OSError as error:
        inside = str(error.filename or "").startswith(root) or error.errno in _FULL
        if error.errno is None or not inside or VARIABLE in str(error):
            raise
        raise type(error)(
            error.errno,
            f"{error.strerror}; the cache is {root}, {VARIABLE} names another",
            error.filename or root,
        ) from error
