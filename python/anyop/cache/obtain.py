# SPDX-License-Identifier: Apache-2.0
"""The library of a request: of the entry that is there, else built and stored. Imports little, as lookup.py."""

from __future__ import annotations

from collections.abc import Callable

from anyop.cache.lookup import Request, find
from anyop.cache.manifest import Manifest


def obtain(request: Request, make: Callable[[str], Manifest]) -> str:
    """Path of the library: of the entry that is there, or of the one that make(folder) builds in a private folder.

    One process builds, the others wait for it. Raises what make raises, OSError where the cache cannot be written,
    TimeoutError where another process builds for longer than ANYOP_BUILD_TIMEOUT seconds.
    """
    found = find(request)
    if found:
        return found
    from anyop.cache.store import store

    return store(request, make)
