# SPDX-License-Identifier: Apache-2.0
"""Shows, checks and compares rules about ATen's overloads: the part of `anyop routes` behind aten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from anyop._load import core
from anyop.command._pattern import matches

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
    found = rules()
    if not found:
        return []
    try:
        core.set_aten_overloads(_overloads())
    except ImportError:
        return ["the names in aten.* rules are not checked: torch is not installed"]
    answers = ask("aten.*")
    return [
        f"{rule['reason']}: warning: {rule['pattern']} never applies: {why}"
        for at, rule in enumerate(found)
        if (why := _never(rule, found[at + 1 :], answers))
    ]


def _overloads() -> list[str]:
    from anyop.aten import _table

    return [text[: text.index("(")] for texts in _table.schemas().values() for text in texts]


def ask(pattern: str, device: str | None = None) -> Answers:
    """What is said of each overload that fits, on this device or all. Raises ImportError without torch, LookupError."""
    names = [name for name in _overloads() if pattern == "*" or _fits(pattern, name)]
    if not names:
        raise LookupError(f"no overload of ATen's fits '{pattern}'")
    devices = [d for d in _DEVICES if device in (None, d)]
    return {(name, d): Answer(*core.aten_route(name, d)) for name in names for d in devices}


def concerns(rule: dict[str, Any], answers: Answers) -> bool:
    """Whether it fits one of these overloads."""
    return any(_fits(rule["pattern"], name) for name, _ in answers)


def _fits(pattern: str, overload: str) -> bool:
    """As the router compares: aten.add is all overloads of add, aten.mm.default the one without a name."""
    text = pattern.replace("::", ".").removeprefix("aten.")
    packet = overload.partition(".")[0]
    names = (packet, overload, f"{overload}.default" if packet == overload else overload)
    return any(matches(text, name) for name in names)


def _never(rule: dict[str, Any], later: list[dict[str, Any]], answers: Answers) -> str:
    """Why a rule decides nothing; empty when it decides something, or a variable hides what it decides."""
    reasons = {answer.reason for answer in answers.values()}
    if rule["reason"] in reasons:
        return ""
    hidden = {a.reason for (name, _), a in answers.items() if _fits(rule["pattern"], name)}
    if any(reason.startswith("ANYOP_OP_") for reason in hidden):
        return ""
    held = [other["reason"] for other in later if other["reason"] in hidden]
    return f"{held[-1]} says the same later" if held else "no device fits its condition"


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
    """Rows of overloads, devices and "default -> native, boxed"."""
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
