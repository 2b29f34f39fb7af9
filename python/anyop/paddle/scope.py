# SPDX-License-Identifier: Apache-2.0
"""anyop.use and to_static: a program that was traced in one scope is not taken for calls in another.

Paddle keeps programs by the hash of a key, and SOT translates all frames but those of some folders. Nothing public adds
to either.
"""

from __future__ import annotations

import os
from typing import Any

from paddle.framework import core
from paddle.jit.dy2static.program_translator import CacheKey
from paddle.jit.sot.opcode_translator.skip_files import skip_file_names

import anyop
from anyop._scope import now

_plain_hash = CacheKey.__hash__


def _hash(self: Any) -> int:
    found, use = _plain_hash(self), now()
    return found if use is None else hash((found, use))


def install() -> None:
    """Once, when anyop.paddle is imported."""
    CacheKey.__hash__ = _hash
    skip_file_names.add(os.path.dirname(anyop.__file__) + os.sep)
    core.eval_frame_skip_file_prefix(tuple(skip_file_names))
