# SPDX-License-Identifier: Apache-2.0
"""Gradients and copies that a caller gives to the older optimizers: one list, or one for each group."""

from __future__ import annotations

from types import GeneratorType
from typing import Any


def for_groups(given: Any, groups: int) -> list[Any]:
    """A list for each group, or None."""
    if given is None:
        return [None] * groups
    if isinstance(given, GeneratorType):
        return [list(given)]
    return list(given) if isinstance(given[0], list) else [given]
