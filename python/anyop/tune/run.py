# SPDX-License-Identifier: Apache-2.0
"""Tunes a workload: measures every kind of call, chooses, writes the routes, and proves them on the whole workload."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyop
from anyop.tune import routes
from anyop.tune.arguments import CannotDraw, Draw
from anyop.tune.candidates import Candidate, Judge
from anyop.tune.choice import TIE, Measured, Rule, choose, chosen_rule
from anyop.tune.clock import Side, take_turns
from anyop.tune.proof import better_rules, call_of, clock_of, loaded, time_sequence
from anyop.tune.workload import Kind

Tell = Callable[[dict[str, Any]], None]
_BUSY = 0.5  # load average of a CPU, from which on it is said
_PROOF_SECONDS = 0.1  # of each kind of call and all sides


@dataclass
class Settings:
    """What `anyop tune` is asked."""

    path: str
    backends: Sequence[str] = ("*",)
    seconds: float = 0.5  # for each kind of call
    alike: bool = False  # each kind of call counts alike, for nobody counted calls
    sources: Sequence[str] = ()


@dataclass
class Tuned:
    """What came of it."""

    measured: dict[routes.Group, list[Measured]] = field(default_factory=dict)
    rules: dict[routes.Group, list[Rule]] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)  # ns of the workload, by side
    by_group: dict[routes.Group, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # backend: what it does not cover
    dropped: list[routes.Group] = field(
        default_factory=list
    )  # rules that did not hold their promise


def tune(kinds: list[Kind], settings: Settings, tell: Tell) -> Tuned:
    """Measures and writes settings.path. Tells {"note"}, {"at", "done", "of"} as it goes.

    Routes that were loaded are gone afterwards.
    """
    anyop.record(None)  # these calls are no part of a workload
    anyop.load_routes(None)
    tuned = Tuned()
    if load := _load():
        tell({"note": load})
    for done, kind in enumerate(kinds):
        tell({"at": f"{kind.operator} on {kind.device}, {kind}", "done": done, "of": len(kinds)})
        found = _measure(kind, settings, tell)
        if found:
            tuned.measured.setdefault((kind.operator, kind.device), []).append(found)
    if not tuned.measured:
        raise ValueError("no kind of call could be measured")
    _weigh(tuned, settings)
    tuned.rules = {group: choose(found) for group, found in tuned.measured.items()}
    _write(tuned, settings)
    _prove(tuned, settings, tell)
    return tuned


def _load() -> str:
    """What to say of a machine on which others run; empty where nobody does."""
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= _BUSY * cpus:
        return ""
    return (
        f"others run on this machine (load average {load:.1f} on {cpus} CPUs): times vary, and rules may be "
        "missing; tune again when it is idle"
    )


def _measure(kind: Kind, settings: Settings, tell: Tell) -> Measured | None:
    """Judges and times the candidates of one kind of call."""
    what = f"{kind.operator} on {kind.device}, {kind}"
    try:
        draw = Draw(kind)
        judge = Judge(draw)
        found = Measured(kind, judge.default(), judge.candidates(settings.backends))
        _time(draw, [c for c in found.candidates if c.right], settings.seconds)
    except (CannotDraw, NotImplementedError, TypeError, ValueError, MemoryError) as error:
        tell({"note": f"left out: {what}: {error or type(error).__name__}"})
        return None
    for candidate in found.candidates:
        if candidate.takes and candidate.why_not:
            tell({"note": f"{candidate.name} is excluded: {what}: {candidate.why_not}"})
    if not found.right:
        tell({"note": f"left out: {what}: no candidate takes it and is right"})
        return None
    return found


def _time(draw: Draw, candidates: list[Candidate], seconds: float) -> None:
    call = call_of(draw)
    operator = draw.kind.operator
    sides = {c.name: Side(call, partial(anyop.use, c.name, ops=operator)) for c in candidates}
    take_turns(sides, clock_of(draw), seconds)
    for candidate in candidates:
        times = sorted(sides[candidate.name].times)
        candidate.min_ns, candidate.median_ns = times[0], sides[candidate.name].median


def _weigh(tuned: Tuned, settings: Settings) -> None:
    for found in tuned.measured.values():
        for m in found:
            fastest = m.right[0].median_ns
            m.weight = 1e6 / max(fastest, 1.0) if settings.alike else float(m.kind.count)


def _write(tuned: Tuned, settings: Settings) -> None:
    """The file; it must make the router choose what was meant."""
    devices = {device for _, device in tuned.measured}
    head = routes.environment_lines(devices, list(settings.sources))
    routes.write(settings.path, routes.text(tuned.measured, tuned.rules, head))
    expected = [
        (m, _meant(tuned.rules[group], m), Draw(m.kind))
        for group, found in tuned.measured.items()
        for m in found
    ]
    if lines := routes.misled(settings.path, expected):
        raise RuntimeError(f"{settings.path} does not do what was measured: {'; '.join(lines)}")


def _meant(rules: list[Rule], m: Measured) -> str | None:
    rule = chosen_rule(rules, m)
    candidate = m.find(rule.name) if rule else None
    return candidate.name if candidate and candidate.takes else m.default


# ---- the proof ----


def _prove(tuned: Tuned, settings: Settings, tell: Tell) -> None:
    """Times the whole workload by default, by the file, and by each backend that covers it, in turns."""
    every = [c for found in tuned.measured.values() for m in found for c in m.candidates]
    backends = {c.backend for c in every if c.takes}  # others are not here, or not for such calls
    for backend in sorted(backends):
        if gap := _gap(backend, tuned):
            tuned.missing[backend] = gap
    whole = sorted(backends - tuned.missing.keys())
    with _single_backends(whole) as files:
        sides = {"default": None, "tuned": settings.path, **files}
        for group, found in tuned.measured.items():
            tell({"at": f"{group[0]} on {group[1]}: proof"})
            times = tuned.by_group[group] = _prove_group(found, sides)
            if not tuned.rules[group]:  # these two ran the same
                times["tuned"] = times["default"] = min(times["tuned"], times["default"])
        if _drop(tuned, tell):
            _write(tuned, settings)
        _prove_whole(tuned, settings, sides, tell)


def _prove_whole(
    tuned: Tuned, settings: Settings, sides: dict[str, str | None], tell: Tell
) -> None:
    """Times all calls of each device one after the other; writes the file anew where another side is taken."""
    tuned.totals = dict.fromkeys(sides, 0.0)
    for device in sorted({device for _, device in tuned.measured}):
        tell({"at": f"all calls on {device}: proof"})
        groups = [group for group in tuned.measured if group[1] == device]
        every = [m for group in groups for m in tuned.measured[group]]
        wrong = any(not (c := m.find(m.default)) or not c.right for m in every)
        files = {name: path for name, path in sides.items() if name != "default" or not wrong}
        times = time_sequence(every, files)
        better = {g: better_rules(times, tuned.measured[g], tuned.rules[g]) for g in groups}
        replaced = False
        for group, (side, rules) in better.items():
            if rules is not None and rules != tuned.rules[group]:
                tell(
                    {
                        "note": f"{group[0]} on {device}: {side} is faster among all calls: it is taken"
                    }
                )
                tuned.rules[group], replaced = rules, True
        if replaced:  # what was put together is timed, too
            _write(tuned, settings)
            times = time_sequence(every, files)
        for name in sides:
            tuned.totals[name] += times.get(name, math.nan)


def _gap(backend: str, tuned: Tuned) -> str:
    """The first operator that a backend does not cover; empty when it covers all."""
    for (operator, _), found in tuned.measured.items():
        for m in found:
            mine = [c for c in m.candidates if c.backend == backend]
            if not any(c.right for c in mine):
                return f"{operator} ({m.kind})"
            if any(c.takes and not c.right for c in mine):
                return f"{operator} ({m.kind}), where it is wrong"
    return ""


@contextmanager
def _single_backends(backends: list[str]):
    """Route files that put all operators on one backend."""
    with tempfile.TemporaryDirectory(prefix="anyop-tune-") as folder:
        files = {}
        for backend in backends:
            files[backend] = os.path.join(folder, f"{backend}.routes")
            with open(files[backend], "w", encoding="utf-8") as file:
                file.write(f"* = {backend}\n")
        yield files


def _prove_group(found: list[Measured], files: dict[str, str | None]) -> dict[str, float]:
    """Nanoseconds of all calls of one operator on one device, by side."""
    totals = dict.fromkeys(files, 0.0)
    for m in found:
        draw = Draw(m.kind)
        call = call_of(draw)
        sides = {name: Side(call, partial(loaded, path)) for name, path in files.items()}
        if m.default is None or not m.find(m.default) or not m.find(m.default).right:
            del sides["default"]
        take_turns(sides, clock_of(draw), _PROOF_SECONDS, drop=False)
        for name in totals:
            totals[name] += m.kind.count * (sides[name].median if name in sides else math.nan)
    return totals


def _drop(tuned: Tuned, tell: Tell) -> bool:
    """Takes back the rules of operators that are slower by them than without."""
    for group, times in tuned.by_group.items():
        if tuned.rules[group] and times["tuned"] > TIE * times["default"]:
            tell(
                {"note": f"{group[0]} on {group[1]} was no faster in the proof: the default stays"}
            )
            tuned.rules[group] = []
            times["tuned"] = times["default"]
            tuned.dropped.append(group)
    return bool(tuned.dropped)
