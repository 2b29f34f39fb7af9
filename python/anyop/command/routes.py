# SPDX-License-Identifier: Apache-2.0
"""Show, check and compare routes: which backend runs which operator.

show: the rules in force (ANYOP_ROUTES, or the file that is named), where each stands, and what runs by them.
check: mistakes as file:line:column, exit code 1; and rules that can never apply.
diff: the calls whose backend two route files choose differently; also presets, and "default" for no rules.

What runs is asked of the router for every dtype, at the sizes of [bench] and around the numbers in conditions.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from typing import Any

_DEVICES = ("cpu", "cuda", "hip")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop routes` takes."""
    words = parser.add_subparsers(dest="word", required=True, metavar="show|check|diff")
    show = words.add_parser(
        "show", help="rules in force, and what runs by them", allow_abbrev=False
    )
    show.add_argument(
        "routes", nargs="?", metavar="ROUTES", help="a file or preset, in their place"
    )
    check = words.add_parser("check", help="mistakes in route files", allow_abbrev=False)
    check.add_argument("files", nargs="+", metavar="FILE")
    diff = words.add_parser(
        "diff", help="what two route files choose differently", allow_abbrev=False
    )
    diff.add_argument("a", metavar="A", help="a file, a preset, or default")
    diff.add_argument("b", metavar="B")
    diff.add_argument("--exit-code", action="store_true", help="1 where they differ")
    for part in (show, diff):
        part.add_argument("--op", default="*", metavar="PATTERN", help="only these operators")
        part.add_argument("--device", choices=_DEVICES, help="default: those that are here")
    for part in (show, check, diff):
        part.add_argument("--library", metavar="LIB", action="append", default=[], help="load it")


def run(options: argparse.Namespace) -> int:
    """Loads libraries, then does what the word says."""
    import anyop

    for library in options.library:
        anyop.load(library)
    return {"show": _show, "check": _check, "diff": _diff}[options.word](options)


def _operators(pattern: str) -> list[str]:
    import anyop

    found = [name for name in anyop.list_ops() if _fits(pattern, name)]
    if not found:
        raise ValueError(f"no operator fits '{pattern}'")
    return found


def _fits(pattern: str, operator: str) -> bool:
    """As the router compares: * and ? are all that is special, anyop. may be written."""
    parts = (
        ".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern.replace("::", ".")
    )
    text = "".join(parts)
    full = operator if "." in operator else f"anyop.{operator}"
    return any(re.fullmatch(text, name) for name in (operator, full))


def _devices(options: argparse.Namespace) -> list[str]:
    from anyop._routes import fitting_preset

    if options.device:
        return [options.device]
    return ["cpu", "cuda"] if fitting_preset() == "cuda" else ["cpu"]


# ---- show ----


def _show(options: argparse.Namespace) -> int:
    import anyop
    from anyop._routes import fitting_preset
    from anyop.command._probe import ask, rules

    operators = _operators(options.op)
    if options.routes is not None:
        anyop.load_routes(options.routes)
    print("\n".join(_settings()))
    print(f"the preset that fits this machine: {fitting_preset()}")
    found = [rule for rule in rules() if any(_fits(rule["pattern"], name) for name in operators)]
    print(
        "\nrules, the last one that fits a call holds" if found else "\nno rules: priorities alone"
    )
    rows = [(f"{r['pattern']} = {', '.join(r['backends'])}", f"[{r['when'] or 'always'}]", r["reason"])
            for r in found]  # fmt: skip
    _print_columns(rows)
    print("\nwhat runs, of all that there is")
    answers = ask(operators, _devices(options), [rule["when"] for rule in found])
    _print_columns(_runs(answers))
    return 0


def _settings() -> Iterable[str]:
    import json

    from anyop._load import core

    state = json.loads(core.routes())
    for name in state["variables"]:
        yield f"{name}={os.environ.get(name, '')}"
    if state["disabled"]:
        yield f"disabled by ANYOP_DISABLE: {', '.join(state['disabled'])}"
    if state["deterministic"]:
        yield "only deterministic implementations (anyop.use_deterministic)"
    yield f"files: {', '.join(state['files']) or 'none'}"


def _runs(answers: dict[Any, Any]) -> list[tuple[str, ...]]:
    """A row for each operator, device and answer; the calls that get it, where there are several answers."""
    groups: dict[tuple[str, str], dict[Any, list[Any]]] = {}
    for call, answer in answers.items():
        groups.setdefault((call.operator, call.device), {}).setdefault(answer, []).append(call)
    rows = []
    for (operator, device), found in groups.items():
        for answer, calls in sorted(found.items(), key=lambda item: -len(item[1])):
            only = (
                _calls(calls, [c for others in found.values() for c in others])
                if len(found) > 1
                else ""
            )
            runs = answer.chosen or "nothing"
            rows.append((operator, device, runs, _others(operator), answer.reason, only))
    return rows


def _others(operator: str) -> str:
    import anyop

    return f"of {', '.join(anyop.backends(operator))}"


def _calls(calls: list[Any], every: list[Any]) -> str:
    """Dtypes at all their sizes or at some, "float32, float16 at D=8193"; empty for all calls."""
    if len(calls) == len(every):
        return ""
    by_sizes: dict[tuple[str, ...], list[str]] = {}
    for dtype in dict.fromkeys(call.dtype for call in calls):
        sizes = tuple(call.sizes for call in calls if call.dtype == dtype)
        there = sum(call.dtype == dtype for call in every)
        by_sizes.setdefault(() if len(sizes) == there else sizes, []).append(dtype)
    return "; ".join(_words(sizes, dtypes, every) for sizes, dtypes in by_sizes.items())


def _words(sizes: tuple[str, ...], dtypes: list[str], every: list[Any]) -> str:
    all_dtypes = len(dtypes) == len({call.dtype for call in every})
    words = "all dtypes" if all_dtypes else ", ".join(dtypes)
    if not sizes:
        return words
    shown = ", ".join(name or "small sizes" for name in sizes[:3])
    return f"{words} at {shown}" + (f" and {len(sizes) - 3} more" if len(sizes) > 3 else "")


def _print_columns(rows: list[tuple[str, ...]]) -> None:
    if not rows:
        return
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip())


# ---- check ----


def _check(options: argparse.Namespace) -> int:
    import anyop
    from anyop.command._probe import rules

    code = 0
    for file in options.files:
        try:
            anyop.load_routes(file if {".", "/"} & set(file) else f"./{file}")  # no preset
        except ValueError as error:
            print(error, flush=True)
            code = 1
            continue
        found = rules()
        for at, rule in enumerate(found):
            if why := _never(rule, found[at + 1 :]):
                print(f"{rule['reason']}: warning: {rule['pattern']} never applies: {why}")
        print(f"{file}: {len(found)} rule{'s' * (len(found) != 1)}, good")
    return code


def _never(rule: dict[str, Any], later: list[dict[str, Any]]) -> str:
    """Why no call gets to a rule; empty when one may."""
    import anyop

    words = set(rule["when"].split())
    if clash := _contradiction(words):
        return clash
    operators = [name for name in anyop.list_ops() if _fits(rule["pattern"], name)]
    holding = [other for other in later if set(other["when"].split()) <= words]
    for name in operators:
        if not any(_fits(other["pattern"], name) for other in holding):
            return ""
    if not operators:
        return ""  # of a library that is loaded later
    last = next(other for other in reversed(holding) if _fits(other["pattern"], operators[0]))
    return f"{last['reason']} says the same calls later"


def _contradiction(words: set[str]) -> str:
    """Two words that cannot both hold."""
    kept: dict[str, set[str]] = {}
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for word in sorted(words):
        name, sign, value = re.fullmatch(r"(.+?)(!=|<=|>=|=|<|>)(.+)", word).groups()
        if name.startswith(("dtype", "device")):
            if sign == "=":
                kept[name] = kept.get(name, set(value.split("|"))) & set(value.split("|"))
            continue
        number = int(value)
        if sign in ("=", ">=", ">"):
            low[name] = max(low.get(name, number), number + (sign == ">"))
        if sign in ("=", "<=", "<"):
            high[name] = min(high.get(name, number), number - (sign == "<"))
    for name, names in kept.items():
        if not names:
            return f"no {name} fits all words of its condition"
    for name in low.keys() & high.keys():
        if low[name] > high[name]:
            return f"no {name} fits all words of its condition"
    return ""


# ---- diff ----


def _diff(options: argparse.Namespace) -> int:
    import anyop
    from anyop.command._probe import ask, rules

    operators, devices = _operators(options.op), _devices(options)
    conditions: list[str] = []
    for path in (options.a, options.b):
        anyop.load_routes(None if path == "default" else path)
        conditions += [rule["when"] for rule in rules()]
    after = ask(operators, devices, conditions)
    anyop.load_routes(None if options.a == "default" else options.a)
    before = ask(operators, devices, conditions)
    changes: dict[tuple[str, ...], list[Any]] = {}
    for call, answer in before.items():
        if answer.chosen != after[call].chosen:
            change = f"{answer.chosen or 'nothing'} -> {after[call].chosen or 'nothing'}"
            changes.setdefault((call.operator, call.device, change), []).append(call)
    _print_columns([
        (*change, _calls(calls, [c for c in before if (c.operator, c.device) == change[:2]]))
        for change, calls in changes.items()
    ])  # fmt: skip
    if not changes:
        print(f"{options.a} and {options.b} choose the same")
    return 1 if changes and options.exit_code else 0
