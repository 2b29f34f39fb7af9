# SPDX-License-Identifier: Apache-2.0
"""What to say behind a name that nobody knows: the nearest one that is known."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message, "; did you mean 'rms_norm'?"; empty where nothing is near."""
    import difflib

    found = difflib.get_close_matches(str(name)[:100], list(known), 1)
    return f"; did you mean '{found[0]}'?" if found else ""
