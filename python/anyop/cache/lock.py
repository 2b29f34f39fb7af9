# SPDX-License-Identifier: Apache-2.0
"""A lock between processes that ends with its holder, says who holds it and is never waited for without bound.

filelock has the first and the last. It does not say who holds a lock of the kernel's, and on a file system without
locks it raises unless the error is ENOSYS, where a build here goes on: the first to finish counts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator

from anyop.cache.dependencies import open_regular

_SAY_AFTER_SECONDS = 3.0
_POLL_SECONDS = 0.05
# What file systems say that have no locks. Builds are safe without: the first to finish counts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_held: set[int] = set()  # open lock files of this process


@contextlib.contextmanager
def locked(path: str, what: str, timeout: float) -> Iterator[None]:
    """Hold the lock file. Says on stderr, after 3 s, who holds it; raises TimeoutError after timeout seconds."""
    start, said = time.monotonic(), False
    while (handle := _try(path)) is None:
        waited = time.monotonic() - start
        if waited > timeout:
            raise TimeoutError(
                f"waited {waited:.0f} s for {_holder(path)}, which builds {what} and holds {path}; "
                "if it is stopped, continue or kill it; ANYOP_BUILD_TIMEOUT sets the seconds"
            )
        if not said and waited > _SAY_AFTER_SECONDS:
            said = True
            tell(
                f"waiting for {_holder(path)}, which builds {what} and holds {path}; for {timeout:.0f} s at most"
            )
        time.sleep(min(_POLL_SECONDS, max(timeout - waited, 0.001)))
    try:
        yield
    finally:
        release(handle)


def tell(message: str) -> None:
    """One line for the person who waits, and for the log."""
    logging.getLogger("anyop").info(message)
    print(f"anyop: {message}", file=sys.stderr, flush=True)


def try_lock(path: str, lockless: bool = True) -> int | None:
    """The open lock file, None when another process holds it. Released by release() or with the process.

    lockless: whether it counts as locked where the file system has no locks.
    """
    handle = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    _held.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS and lockless:
            return handle
        release(handle)
        if isinstance(error, BlockingIOError) or error.errno in _NO_LOCKS:
            return None
        raise
    return handle


def release(handle: int) -> None:
    """Let go of a lock."""
    _held.discard(handle)
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _forget() -> None:
    """In a forked child: the lock is its parent's, and must end with it."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


def _try(path: str) -> int | None:
    handle = try_lock(path)
    if handle is None:
        return None
    try:
        same = os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        same = False
    if not same:  # removed by a clean-up in between: this lock says nothing
        release(handle)
        return None
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(holder).encode(), 0)
    return handle


def _holder(path: str) -> str:
    try:
        with open(path, encoding="utf-8", opener=open_regular) as stream:
            holder = json.load(stream)
        return f"process {holder['pid']} on host {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
