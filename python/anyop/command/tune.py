# SPDX-License-Identifier: Apache-2.0
"""Measure which backend runs each call of a workload fastest, and write a route file.

A workload is a record of a run (ANYOP_RECORD=run.jsonl, or anyop.record), or shapes such as
"rms_norm: rows=2048 D=4096 dtype=float32". Every candidate is compared with the reference before it is timed; one
that is wrong or fails is said, and never routed to. Kinds of calls that were not counted weigh alike.
"""

from __future__ import annotations

import argparse
import os
import re
from fnmatch import fnmatchcase
from typing import Any

from anyop._nearest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop tune` takes."""
    parser.add_argument("workload", nargs="*", metavar="RECORD|SHAPES", help="what is to be fast")
    parser.add_argument(
        "-o", "--output", default="routes.txt", metavar="FILE", help="default: routes.txt"
    )
    parser.add_argument("--bench", action="store_true", help="also the sizes of [bench] sections")
    parser.add_argument("--ops", metavar="A,B", help="only these operators; names or patterns")
    parser.add_argument("--backends", metavar="A,B", help="only these backends; names or patterns")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="only calls there")
    parser.add_argument("--library", metavar="LIB", action="append", default=[], help="load it")
    parser.add_argument(
        "--seconds", type=_seconds, default=0.5, help="for each kind of call (default: 0.5)"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=64,
        help="kinds of each operator, the most frequent (default: 64)",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"'{text}', expected a number of seconds")
    return value


def run(options: argparse.Namespace) -> int:
    """Measures in a process of its own: a kernel that crashes is named."""
    from anyop._paths import is_installed

    if not is_installed("numpy"):
        raise ImportError("NumPy is needed: python -m pip install numpy")
    from anyop.command._child import events
    from anyop.tune.report import Progress

    if not options.workload and not options.bench:
        raise ValueError("give a record, or shapes, or --bench (see anyop tune --help)")
    progress, at, code = Progress(), "the start", 0
    for event in events(lambda tell: _work(options, tell)):
        progress.clear()
        if "note" in event:
            print(f"note: {event['note']}", flush=True)
        elif "lines" in event:
            print("\n".join(event["lines"]), flush=True)
        elif "at" in event:
            at = event["at"]
            progress.show(event)
        elif "error" in event or "died" in event:
            code = 1
            died = f"{at}: the process {event.get('died')}"
            print(f"FAILED {event.get('error', died)}; nothing was written", flush=True)
    return code


def _work(options: argparse.Namespace, tell: Any) -> None:
    """In the child."""
    import anyop
    from anyop.tune import Settings, tune
    from anyop.tune.report import summary

    for library in options.library:
        anyop.load(library)
    kinds = _chosen(options, _kinds(options, tell), tell)
    counted = any(os.path.exists(word) for word in options.workload)
    settings = Settings(
        options.output,
        options.backends.split(",") if options.backends else ("*",),
        options.seconds,
        not counted,
        [os.path.basename(word) for word in options.workload] + ["[bench]"] * options.bench,
    )
    if held := sorted(name for name in os.environ if name.startswith("ANYOP_OP_")):
        tell({"note": f"{', '.join(held)} stand before route files: unset them to use the result"})
    tell({"lines": summary(tune(kinds, settings, tell), options.output)})


def _kinds(options: argparse.Namespace, tell: Any) -> list[Any]:
    """All that the workload holds."""
    import anyop
    from anyop.tune import bench_kinds, given_shapes, read_record

    device = options.device or "cpu"
    kinds: list[Any] = []
    for word in options.workload:
        if not os.path.exists(word) and re.match(r"\s*[\w.]+\s*:", word):
            kinds.append(given_shapes(word, device))
            continue
        found, notes = read_record(word)
        kinds += found
        for note in notes:
            tell({"note": note})
    if options.bench:
        for operator in anyop.list_ops():
            kinds += bench_kinds(operator, device)
    return kinds


def _check(patterns: list[str], known: set[str], what: str) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"{what} '{pattern}'{did_you_mean(pattern, known)}")


def _chosen(options: argparse.Namespace, kinds: list[Any], tell: Any) -> list[Any]:
    """Those that the options allow, equal ones as one; notes on those that are left out."""
    import anyop
    from anyop._routes import implementations
    from anyop.tune import merged

    patterns, known = (options.ops or "*").split(","), set(anyop.list_ops())
    _check(patterns, known | {kind.operator for kind in kinds}, "no operator fits")
    backends = {
        name for op in known for i in implementations(op) for name in (i["name"], i["backend"])
    }
    _check((options.backends or "*").split(","), backends, "no backend fits")
    found: dict[tuple[str, str], list[Any]] = {}
    for kind in merged(kinds):
        fits = any(fnmatchcase(kind.operator, pattern) for pattern in patterns)
        if not fits or options.device not in (None, kind.device):
            continue
        found.setdefault((kind.operator, kind.device), []).append(kind)
    for (operator, device), group in list(found.items()):
        if operator not in known:
            tell({"note": f"{operator} is not loaded: name its library with --library"})
            del found[operator, device]
        elif len(group) > options.most:
            group.sort(key=lambda kind: -kind.count)
            calls = sum(kind.count for kind in group[options.most :])
            tell({"note": f"{operator} on {device}: {len(group) - options.most} kinds with {calls:,} calls are "
                          f"left out (--most)"})  # fmt: skip
            del group[options.most :]
    if not found:
        raise ValueError("nothing of the workload is left to be tuned")
    return [kind for group in found.values() for kind in group]
