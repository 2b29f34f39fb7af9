# SPDX-License-Identifier: Apache-2.0
"""Backends that are registered when one is first looked for: they would cost every import more than a call."""

from __future__ import annotations

from anyop import _operators
from anyop.backend import flaggems, triton


def register_all() -> None:
    """Registers them for all operators, and for those that are loaded later. The second call does nothing."""
    if _add not in _operators.on_new_operators:
        _operators.on_new_operators.append(_add)
        _add(_operators.list_ops())


def _add(ops: list[str]) -> None:
    flaggems.add(ops)
    if triton.is_interpreted():
        triton.add_on_cpu(ops)
