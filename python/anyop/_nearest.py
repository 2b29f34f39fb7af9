# SPDX-License-Identifier: Apache-2.0
"""What to say behind a name that nobody knows: the nearest one that is known."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message, "; did you mean 'rms_norm'?"; empty where nothing is near."""
    import difflib

    found = difflib.get_close_matches(str(name)[:100], list(known), 1)
    return f"; did you mean '{found[0]}'?" if found else ""


def no_attribute(package: str, name: str, known: Iterable[str]) -> AttributeError:
    """What the __getattr__ of one of anyop's packages raises.

    Names with an underscore, which Python and tools ask for, get no proposal.
    """
    text = f"module {package!r} has no attribute {name!r}"
    if not name.startswith("_"):
        import anyop

        is_operator = name in anyop.ops.anyop.__dict__
        text += f"; it is anyop.{name}" if is_operator else did_you_mean(name, known)
    return AttributeError(text, name=name)  # no object: Python would propose a second name
