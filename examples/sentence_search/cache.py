# SPDX-License-Identifier: Apache-2.0
"""Keeps indexes in the user's cache folder: one file each, checked when read, replaced whole."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np

from .corpus import Passage
from .index import Index

MAGIC = b"anyop index 1\n"
DIGEST_BYTES = 32


class DamagedError(Exception):
    """A file in the cache that is not what was written there."""


def cache_folder() -> str:
    """XDG_CACHE_HOME or ~/.cache; raises OSError where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification says to ignore a relative one
        return os.path.join(base, "anyop", "sentence_search")
    base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base) or os.environ.get("HOME") == "":
        raise OSError("no home folder: set XDG_CACHE_HOME")
    return os.path.join(base, "anyop", "sentence_search")


def key(*parts: str) -> str:
    """Name of the index made from these; the code that makes it is one more part."""
    digest = hashlib.sha256(json.dumps(parts).encode())
    here = os.path.dirname(__file__)
    for name in sorted(os.listdir(here)):
        if name.endswith(".py") and not name.endswith("_test.py"):
            with open(os.path.join(here, name), "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def load(name: str) -> Index | None:
    """The index of that name, None if there is none; raises DamagedError or OSError."""
    try:
        with open(os.path.join(cache_folder(), name), "rb") as file:
            content = memoryview(file.read())
    except FileNotFoundError:
        return None
    begin = len(MAGIC) + DIGEST_BYTES
    body = content[begin:]
    if content[:begin] != MAGIC + hashlib.sha256(body).digest():
        raise DamagedError
    head_bytes = int.from_bytes(body[:8], "little")
    head = json.loads(bytes(body[8 : 8 + head_bytes]))
    vectors = np.frombuffer(body[8 + head_bytes :], dtype="<f4").reshape(head["shape"])
    passages = [Passage(*fields) for fields in head["passages"]]
    # A copy is aligned and writable, as frombuffer's view of the file need not be.
    return Index(passages, vectors.copy(), head["skipped"], head["truncated"], head["seconds"])


def save(name: str, index: Index) -> None:
    """Write the index beside its place and move it there; raises OSError."""
    import tempfile  # 5 ms, not needed to read

    folder = cache_folder()
    os.makedirs(folder, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=folder, prefix="unfinished-")
    try:
        with open(descriptor, "wb") as file:
            file.write(_content(index))
        os.replace(path, os.path.join(folder, name))
    except BaseException:
        os.unlink(path)
        raise


def _content(index: Index) -> bytes:
    head = json.dumps(
        {
            "shape": index.vectors.shape,
            "passages": index.passages,
            "skipped": index.skipped,
            "truncated": index.truncated,
            "seconds": index.seconds,
        }
    ).encode()
    vectors = np.ascontiguousarray(index.vectors, dtype="<f4").tobytes()
    body = len(head).to_bytes(8, "little") + head + vectors
    return MAGIC + hashlib.sha256(body).digest() + body
