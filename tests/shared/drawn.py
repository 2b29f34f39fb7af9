# SPDX-License-Identifier: Apache-2.0
"""Which of many cases a short run tries: one part of several, by the commit, so that runs together try all.

ANYOP_TEST_FULL=1 tries all; ANYOP_TEST_SEED=... draws as another commit did (CONTRIBUTING.md).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
FULL = os.environ.get("ANYOP_TEST_FULL") == "1"


@cache
def seed() -> str:
    """ANYOP_TEST_SEED, else the commit, else one that is always the same."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    if given := os.environ.get("ANYOP_TEST_SEED"):
        return given
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no-commit"


def part(parts: int, what: str = "") -> int:
    """The number of the part that is tried, below parts; `what` draws for itself."""
    digest = hashlib.sha256(f"{seed()} {what}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % parts


def drawn(cases: Sequence[T], parts: int, what: str = "") -> list[T]:
    """One part of so many: of any cases at least one, all in the long form."""
    if FULL or not cases:
        return list(cases)
    parts = min(parts, len(cases))
    return list(cases[part(parts, what) :: parts])


def few(cases: Sequence[T], count: int, what: str = "") -> list[T]:
    """So many of the cases, or nearly: a budget that holds however many there are."""
    return drawn(cases, -(-len(cases) // count), what)
