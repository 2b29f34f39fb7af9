# SPDX-License-Identifier: Apache-2.0
"""anyop.use and to_static: a program that was traced in one scope is not taken for calls in another.

Paddle keeps programs by the hash of a key, to which nothing public adds.
"""

from __future__ import annotations

from typing import Any

from paddle.jit.dy2static.program_translator import CacheKey

from anyop._scope import now

_plain_hash = CacheKey.__hash__


def _hash(self: Any) -> int:
    found, use = _plain_hash(self), now()
    return found if use is None else hash((found, use))


def install() -> None:
    """Once, when anyop.paddle is imported."""
    CacheKey.__hash__ = _hash
