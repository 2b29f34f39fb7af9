# SPDX-License-Identifier: Apache-2.0
"""Shows, checks and compares rules about ATen's overloads: the part of `anyop routes` behind aten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from anyop._load import core

_VARIABLES = "ANYOP_OP_ATEN__"
_DEVICES = ("anyop", "cpu", "cuda")
_SHOWN = 6  # overloads of one answer that are named


class Answer(NamedTuple):
    """Who is asked, in turn, and where that is said."""

    backends: str
    disabled: str
    reason: str

    def __str__(self) -> str:
        if self.reason == "default":
            return "default"
        asked = self.backends.replace(",", ", ") or "nothing"
        return asked + (f" ({self.disabled} disabled)" if self.disabled else "")


Answers = dict[tuple[str, str], Answer]  # by overload and device


def is_aten(pattern: str) -> bool:
    """Whether a pattern is about ATen's overloads, as the router says."""
    return pattern.startswith(("aten.", "aten::"))


def rules() -> list[dict[str, Any]]:
    """Those in force, first to last."""
    return json.loads(core.routes())["aten_rules"]


def are_there() -> bool:
    """Whether rules or variables speak of ATen's overloads."""
    return bool(rules()) or any(name.upper().startswith(_VARIABLES) for name in os.environ)


def check() -> list[str]:
    """Notes about the rules in force. Raises ValueError for one that names no overload of the installed torch."""
    if not rules():
        return []
    try:
        core.set_aten_overloads(_overloads())
    except ImportError:
        return ["the names in aten.* rules are not checked: torch is not installed"]
    return notes(about("aten.*")["aten_rules"])


def notes(rules: list[dict[str, Any]]) -> list[str]:
    """Which of these rules, about overloads or operators, never apply, and why."""
    return [
        f"{rule['reason']}: warning: {rule['pattern']} never applies: {rule['never']}"
        for rule in rules
        if rule["never"]
    ]


def about(pattern: str) -> dict[str, Any]:
    """The overloads that fit, and the rules that concern them. Raises ImportError without torch, LookupError."""
    found = json.loads(core.rules_about(pattern, _overloads()))
    if not found["overloads"]:
        raise LookupError(f"no overload of ATen's fits '{pattern}'")
    return found


def _overloads() -> list[str]:
    from anyop.aten import _table

    return [text[: text.index("(")] for texts in _table.schemas().values() for text in texts]


def ask(names: list[str], device: str | None = None) -> Answers:
    """What is said of each of these overloads, on this device or all."""
    devices = [d for d in _DEVICES if device in (None, d)]
    return {(name, d): Answer(*core.aten_route(name, d)) for name in names for d in devices}


def summary(answers: Answers) -> Iterator[tuple[str, str, str, str]]:
    """Rows of overloads, devices, who is asked and where that is said."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name in dict.fromkeys(name for name, _ in answers):
        said: dict[Answer, list[str]] = {}
        for device in dict.fromkeys(device for _, device in answers):
            said.setdefault(answers[name, device], []).append(device)
        for answer, devices in said.items():
            key = (", ".join(devices), str(answer), answer.reason)
            groups.setdefault(key, []).append(name)
    every = [name for name, _ in answers]
    for (places, text, reason), named in sorted(groups.items(), key=lambda g: g[0][1] == "default"):
        yield _named(named, every), places, text, "" if text == "default" else reason


def changes(before: Answers, after: Answers) -> list[tuple[str, ...]]:
    """Rows of overloads, devices and "default -> native, aten"."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(name for name, _ in before):
        said: dict[str, list[str]] = {}
        for device in dict.fromkeys(device for _, device in before):
            old, new = str(before[name, device]), str(after[name, device])
            if old != new:
                said.setdefault(f"{old} -> {new}", []).append(device)
        for change, devices in said.items():
            groups.setdefault((", ".join(devices), change), []).append(name)
    every = [name for name, _ in before]
    return [(_named(names, every), *key) for key, names in groups.items()]


def _named(names: list[str], every: Iterable[str]) -> str:
    """Names of overloads, or of all that a name has: "aten.mm, aten.add.Tensor and 12 more"."""
    whole: dict[str, set[str]] = {}
    for name in every:
        whole.setdefault(name.partition(".")[0], set()).add(name)
    given = set(names)
    if len(given) == sum(map(len, whole.values())) and len(whole) > 1:
        return f"all {len(given)} overloads"
    short = {}
    for name in names:
        packet = name.partition(".")[0]
        short[f"aten.{packet}" if whole[packet] <= given else f"aten.{name}"] = None
    shown = list(short) if len(short) <= _SHOWN else list(short)[: _SHOWN // 2]
    more = f" and {len(short) - len(shown)} more" if len(short) > len(shown) else ""
    return ", ".join(shown) + more
