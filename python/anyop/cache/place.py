# SPDX-License-Identifier: Apache-2.0
"""Where the cache is, and that nobody else can write to it."""

from __future__ import annotations

import os
import stat

VARIABLE = "ANYOP_CACHE_DIR"


def cache_dir() -> str:
    """ANYOP_CACHE_DIR, else anyop in the user's cache folder (XDG_CACHE_HOME, ~/.cache), else, without a home, in
    the folder of temporary files. Raises ValueError when ANYOP_CACHE_DIR is not absolute: code is never loaded from
    the current folder.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not os.path.isabs(named):
            raise ValueError(f"{VARIABLE} is {named!r}, expected an absolute path")
        if any("\udc80" <= char <= "\udcff" for char in named):
            raise ValueError(f"{VARIABLE} is {named!r}, expected a path in UTF-8")
        return named
    base = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, says XDG
    if os.path.isabs(base):
        return os.path.join(base, "anyop")
    home = os.path.expanduser("~")
    if os.path.isabs(home) and os.path.isdir(home):
        return os.path.join(home, ".cache", "anyop")
    import tempfile

    return os.path.join(tempfile.gettempdir(), f"anyop-{os.getuid()}")


def check_private(folder: str) -> None:
    """Raises PermissionError when another user could put a library into the folder, or chose where its link leads."""
    link = os.lstat(folder)
    if stat.S_ISLNK(link.st_mode) and is_foreign(link):
        raise PermissionError(
            f"{folder} is a link of user {link.st_uid}, which anyop does not follow; remove it, "
            f"or set {VARIABLE} to a folder of your own"
        )
    found = os.stat(folder)
    if is_foreign(found):
        raise PermissionError(
            f"{folder} belongs to user {found.st_uid}: anyop loads no code from it; "
            f"set {VARIABLE} to a folder of your own"
        )
    if is_open(found):
        raise PermissionError(
            f"{folder} can be written by others (mode {stat.S_IMODE(found.st_mode):o}): anyop loads no code from it; "
            f"chmod go-w {folder}, or set {VARIABLE} to a folder of your own"
        )


def is_foreign(found: os.stat_result) -> bool:
    """Whether it belongs to another user than this one and root."""
    return found.st_uid not in (os.getuid(), 0)


def is_open(found: os.stat_result) -> bool:
    """Whether others can write to it."""
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def make_private(folder: str) -> None:
    """Make the folder, for this user alone, and those above it. Raises OSError that names the variable."""
    try:
        _make(folder)
    except OSError as error:
        raise type(error)(
            error.errno, f"{error.strerror}; {VARIABLE} names another cache", folder
        ) from None
    check_private(folder)


def _make(folder: str) -> None:
    """One by one: os.makedirs leaves the folders above to the umask."""
    if os.path.isdir(folder):
        return
    _make(os.path.dirname(folder))
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise  # else another process was faster, or removes it already
