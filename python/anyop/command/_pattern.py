# SPDX-License-Identifier: Apache-2.0
"""Compares names with patterns as the router does: * and ? are all that is special."""

from __future__ import annotations

import functools
import re


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name fits."""
    return bool(_compiled(pattern).fullmatch(name))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern))  # fmt: skip
