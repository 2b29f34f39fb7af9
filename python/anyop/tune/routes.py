# SPDX-License-Identifier: Apache-2.0
"""Writes what was chosen as a route file, with the measurements as comments."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import anyop
from anyop.cases.machine import environment
from anyop.tune.choice import Measured, Rule

Group = tuple[str, str]  # operator and device


def text(
    measured: dict[Group, list[Measured]], rules: dict[Group, list[Rule]], head: list[str]
) -> str:
    """The whole file."""
    lines = ["# Written by `anyop tune`. The last rule that fits a call holds.", *_comments(head)]
    if any(":" in rule.name for found in rules.values() for rule in found):
        gpu = environment({device for _, device in measured}).get("gpu", "no GPU")
        lines.append(f'measured on "{gpu}" by "{anyop.__version__}"')
    spaces = {operator.rpartition(".")[0] for operator, _ in measured} - {""}
    lines += [f"namespace {space}" for space in sorted(spaces)]  # may be loaded after the routes
    for device in sorted({device for _, device in measured}):
        here = {group: found for group, found in measured.items() if group[1] == device}
        lines += ["", f"# ---- {device} ----"]
        for group, found in here.items():
            lines += ["", *_comments(_measurements(group, found, rules.get(group, [])))]
        lines += _rules(device, {group: rules.get(group, []) for group in here}, measured)
    return "\n".join(lines) + "\n"


def environment_lines(devices: set[str], sources: list[str]) -> list[str]:
    """Where and of what: for the head of the file."""
    where = environment(devices)
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    machine = f"{where['cpu']}, {where['threads']} threads of {where['cpus']}"
    return [
        f"workload: {', '.join(sources)}",
        f"machine: {machine}" + (f"; {where['gpu']}" if "gpu" in where else ""),
        f"versions: {versions}",
        f"date: {where['utc']}, load average {where['load_average']}",
    ]


def _comments(lines: list[str]) -> list[str]:
    return [f"# {line}".rstrip() for line in lines]


def _measurements(group: Group, found: list[Measured], rules: list[Rule]) -> list[str]:
    refusals = [{f"{c.name}: {c.why_not}" for c in m.candidates if not c.right} for m in found]
    always = set.intersection(*refusals)
    lines = [group[0] + ("" if rules else ": the default stays")]
    lines += [f"  never {line}" for line in sorted(always)]
    for m, refused in zip(found, refusals):
        calls = f"{m.kind.count:,} call{'s' * (m.kind.count != 1)}"
        lines.append(f"  {m.kind}: {calls}")
        times = [f"{c.name} {_us(c.min_ns)} (median {_us(c.median_ns)})" for c in m.right]
        lines.append(f"    {', '.join(times)}")
        lines += [f"    not {line}" for line in sorted(refused - always)]
    return lines


def _us(ns: float) -> str:
    return f"{ns / 1e3:.3g} us" if ns < 1e6 else f"{ns / 1e6:.3g} ms"


def _rules(
    device: str, rules: dict[Group, list[Rule]], measured: dict[Group, list[Measured]]
) -> list[str]:
    """Rules without further conditions first, for later ones hold before them."""
    plain = {group: rule for group, found in rules.items() for rule in found if not rule.terms}
    lines = ["", f"[when device={device}]"] if plain else []
    lines += [_rule(group[0], rule.name, measured[group]) for group, rule in plain.items()]
    for group, found in rules.items():
        for rule in found:
            if rule.terms:
                words = " ".join(map(str, rule.terms))
                lines += ["", f"[when device={device} {words}]"]
                lines.append(_rule(group[0], rule.name, measured[group]))
    return lines


def _rule(operator: str, name: str, measured: list[Measured]) -> str:
    """The implementation, and behind it what would run without the rule."""
    names = [
        name,
        *(m.default for m in measured if m.default and (c := m.find(m.default)) and c.right),
    ]
    return f"{operator} = {', '.join(dict.fromkeys(names))}"


def write(path: str | os.PathLike, content: str) -> None:
    """Puts the file there, whole or not at all, after the router has read it once."""
    folder = os.path.dirname(os.path.abspath(os.fspath(path)))
    handle, made = tempfile.mkstemp(".routes", ".anyop-", folder)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(content)
        anyop.load_routes(made)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(made, 0o666 & ~mask)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
    finally:
        anyop.load_routes(None)


def misled(path: str | os.PathLike, expected: list[tuple[Measured, str, Any]]) -> list[str]:
    """The kinds for which the router does not choose what was meant, by anyop.explain."""
    anyop.load_routes(path)
    try:
        lines = []
        for m, name, draw in expected:
            arguments = draw.inputs()
            found = anyop.explain(m.kind.operator, **arguments, **draw.places(arguments))
            if found.runs != name:
                lines.append(f"{m.kind.operator}, {m.kind}: {found.runs} runs, {name} was meant")
        return lines
    finally:
        anyop.load_routes(None)
