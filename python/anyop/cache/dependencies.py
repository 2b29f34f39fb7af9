# SPDX-License-Identifier: Apache-2.0
"""Files by their contents, with a memory of what the file system said of them, so that they need not be read
again.

A file counts as unchanged when its size, inode, time of modification and time of change are those that were
recorded: no program can set the time of change (ctime). Otherwise its contents are compared.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable

try:  # what hashlib has without OpenSSL, which takes 3 ms to load: for small files and texts
    from _sha256 import sha256
except ImportError:  # Python 3.12
    try:
        from _sha2 import sha256
    except ImportError:
        from hashlib import sha256

_SMALL_BYTES = 1 << 20  # beyond, OpenSSL's speed is worth its loading
# A file that changed this recently could change again without its times moving: it is always read.
_SETTLED_SECONDS = 2.0
Record = list  # path, SHA-256, then size, inode, mtime_ns, ctime_ns


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """The open file. OSError for what is no regular file, too: a pipe would be waited for, a device may do anything."""
    with contextlib.suppress(IsADirectoryError):
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
    raise OSError(errno.EINVAL, "no regular file; remove it or name another", path)


def hash_file(path: str) -> str:
    """SHA-256 of its contents in hex. Raises OSError."""
    with open(path, "rb", buffering=0, opener=open_regular) as stream:
        block = stream.read(_SMALL_BYTES)
        digest = sha256(block) if len(block) < _SMALL_BYTES else _fast_sha256(block)
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _fast_sha256(data: bytes):
    import hashlib

    return hashlib.sha256(data)


def record(paths: Iterable[str]) -> list[Record]:
    """One record for each file, sorted by path. Raises OSError."""
    now, records = time.time(), []
    for path in sorted(set(paths)):
        before = _state(path)
        digest = hash_file(path)
        settled = before == _state(path) and before[3] < (now - _SETTLED_SECONDS) * 1e9
        records.append([path, digest, *(before if settled else (-1, -1, -1, -1))])
    return records


def unchanged(record: Record) -> bool:
    """Whether the file is there with the recorded contents."""
    path, digest, *state = record
    try:
        return _state(path) == tuple(state) or hash_file(path) == digest
    except OSError:
        return False


def changed_since(paths: Iterable[str], seconds: float) -> list[str]:
    """Those of the files that were written at this time or later."""
    return [path for path in paths if os.stat(path).st_ctime >= seconds]


def _state(path: str) -> tuple[int, int, int, int]:
    found = os.stat(path)
    return found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
