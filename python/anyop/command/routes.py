# SPDX-License-Identifier: Apache-2.0
"""Show, check and compare routes: which backend runs which operator.

show: the rules in force (ANYOP_ROUTES, or the file that is named), where each stands, and what runs by them.
check: mistakes as file:line:column, exit code 1; and rules that can never apply.
diff: the calls whose backend two route files choose differently; also presets, and "default" for no rules.

What runs is asked of the router for every dtype, at the sizes of [bench] and around the numbers in conditions.
Rules about ATen's overloads (aten.mm = native) are asked for each overload of the installed torch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any

from anyop._nearest import did_you_mean

_DEVICES = ("cpu", "cuda", "hip", "anyop")


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
        part.add_argument(
            "--op",
            default="*",
            metavar="PATTERN",
            help="only these operators; aten.PATTERN: of ATen's",
        )
        part.add_argument("--device", choices=_DEVICES, help="default: those that are here")
    for part in (show, check, diff):
        part.add_argument("--library", metavar="LIB", action="append", default=[], help="load it")


def run(options: argparse.Namespace) -> int:
    """Loads libraries, then does what the word says."""
    import anyop

    for library in options.library:
        anyop.load(library)
    return {"show": _show, "check": _check, "diff": _diff}[options.word](options)


def _about(pattern: str) -> dict[str, Any]:
    """Operators and rules; of ATen's overloads, none."""
    import anyop
    from anyop.command._probe import about

    found = about(pattern)
    if not found["operators"]:
        near = did_you_mean(pattern, anyop.list_ops())
        raise ValueError(f"no operator fits '{pattern}'{near}")
    return found


def _devices(options: argparse.Namespace) -> list[str]:
    """Where operators are asked about: anyop is ATen's alone."""
    from anyop._routes import fitting_preset

    if options.device:
        return [] if options.device == "anyop" else [options.device]
    return ["cpu", "cuda"] if fitting_preset() == "cuda" else ["cpu"]


# ---- show ----


def _show(options: argparse.Namespace) -> int:
    import anyop
    from anyop._routes import fitting_preset
    from anyop.command import _aten_rules

    of_aten = _aten_rules.is_aten(options.op)
    if not of_aten:
        _about(options.op)
    if options.routes is not None:
        anyop.load_routes(options.routes)
    print("\n".join(_settings()))
    print(f"the preset that fits this machine: {fitting_preset()}")
    if not of_aten:
        _show_operators(_about(options.op), _devices(options))
    if of_aten or (options.op == "*" and _aten_rules.are_there()):
        _show_aten(options)
    return 0


def _show_operators(about: dict[str, Any], devices: list[str]) -> None:
    from anyop.command._probe import ask, calls, compared

    found = about["rules"]
    print(
        "\nrules, the last one that fits a call holds" if found else "\nno rules: priorities alone"
    )
    _print_rules(found)
    print("\nwhat runs, of all that there is")
    _print_columns(_runs(ask(calls(about["operators"], devices, compared(found)))))


def _show_aten(options: argparse.Namespace) -> None:
    from anyop.command import _aten_rules

    print("\nrules of ATen's overloads, on the PyTorch device and in overlays")
    try:
        found = _aten_rules.about(options.op)
    except ImportError as error:
        _print_rules(_aten_rules.rules())
        print(f"who is asked for them is not known: {error}")
        return
    _print_rules(found["aten_rules"])
    print("\nwho is asked for them")
    answers = _aten_rules.ask(found["overloads"], options.device)
    _print_columns(list(_aten_rules.summary(answers)))


def _print_rules(rules: list[dict[str, Any]]) -> None:
    _print_columns([
        (f"{r['pattern']} = {', '.join(r['backends'])}", f"[{r['when'] or 'always'}]", r["reason"])
        for r in rules
    ])  # fmt: skip


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
    rows: list[tuple[str, ...]] = []
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
    from anyop.command import _aten_rules
    from anyop.command._probe import about

    code = 0
    for file in options.files:
        try:
            anyop.load_routes(file if {".", "/"} & set(file) else f"./{file}")  # no preset
            notes = _aten_rules.check()
        except ValueError as error:
            print(error, flush=True)
            code = 1
            continue
        rules = about("*")["rules"]
        for note in [*_aten_rules.notes(rules), *notes]:
            print(note)
        count = len(rules) + len(_aten_rules.rules())
        print(f"{file}: {count} rule{'s' * (count != 1)}, good")
    return code


# ---- diff ----


def _diff(options: argparse.Namespace) -> int:
    rows = [] if _of_aten(options) else _operator_changes(options)
    if _of_aten(options) or options.op == "*":
        rows += _aten_changes(options)
    _print_columns(rows)
    if not rows:
        print(f"{options.a} and {options.b} choose the same")
    return 1 if rows and options.exit_code else 0


def _load(path: str) -> None:
    import anyop

    anyop.load_routes(None if path == "default" else path)


def _of_aten(options: argparse.Namespace) -> bool:
    from anyop.command._aten_rules import is_aten

    return is_aten(options.op)


def _aten_changes(options: argparse.Namespace) -> list[tuple[str, ...]]:
    from anyop.command import _aten_rules

    answers, there = [], False
    for path in (options.a, options.b):
        _load(path)
        there |= _aten_rules.are_there()
    if not there:
        return []  # and torch need not be asked for its overloads
    names = _aten_rules.about(options.op)["overloads"]
    for path in (options.a, options.b):
        _load(path)
        answers.append(_aten_rules.ask(names, options.device))
    return _aten_rules.changes(*answers)


def _operator_changes(options: argparse.Namespace) -> list[tuple[str, ...]]:
    from anyop.command._probe import ask, calls, compared

    operators, devices = _about(options.op)["operators"], _devices(options)
    numbers: set[tuple[str, int]] = set()
    for path in (options.a, options.b):
        _load(path)
        numbers |= compared(_about(options.op)["rules"])
    given = calls(operators, devices, numbers)
    after = ask(given)
    _load(options.a)
    before = ask(given)
    changes: dict[tuple[str, ...], list[Any]] = {}
    for call, answer in before.items():
        if answer.chosen != after[call].chosen:
            change = f"{answer.chosen or 'nothing'} -> {after[call].chosen or 'nothing'}"
            changes.setdefault((call.operator, call.device, change), []).append(call)
    return [
        (*change, _calls(those, [c for c in before if (c.operator, c.device) == change[:2]]))
        for change, those in changes.items()
    ]
