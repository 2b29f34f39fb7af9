# SPDX-License-Identifier: Apache-2.0
"""Show, verify or clean the cache of built libraries.

anyop cache list                  what is there: name, size, age, folder
anyop cache verify                compare every file with its manifest; exit code 1 when one is damaged
anyop cache clean                 remove everything
anyop cache clean --older 30d     remove what was built longer ago (s, m, h, d, w)
anyop cache clean --size 500M     remove the oldest until the rest is at most this (K, M, G)
"""

from __future__ import annotations

import argparse
import json
import re
import time

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `anyop cache`."""
    parser.add_argument("action", choices=("list", "verify", "clean"))
    parser.add_argument("--older", metavar="AGE", help="clean: such as 12h or 30d")
    parser.add_argument("--size", metavar="SIZE", help="clean: such as 500M or 2G")
    parser.add_argument("--json", action="store_true", help="list, verify: one JSON text")


def run(options: argparse.Namespace) -> int:
    """Act, and print what was done."""
    from anyop.cache import maintenance
    from anyop.cache.place import cache_dir

    if options.action != "clean" and (options.older or options.size):
        raise ValueError("--older and --size are of anyop cache clean")
    if options.action == "clean":
        older = _amount(options.older, _SECONDS, "--older", "30d")
        removed = maintenance.clean(older, _amount(options.size, _BYTES, "--size", "500M"))
        freed = sum(entry.size_bytes for entry in removed)
        print(f"removed {len(removed)} of the entries below {cache_dir()}, {_size(freed)}")
        return 0
    found = maintenance.entries()
    problems = (
        {entry.path: maintenance.problem(entry) for entry in found}
        if options.action == "verify"
        else {}
    )
    if options.json:
        print(
            json.dumps(
                {"cache": cache_dir(), "entries": [_facts(entry, problems) for entry in found]},
                indent=1,
            )
        )
    else:
        _show(cache_dir(), found, problems)
    return 1 if any(problems.values()) else 0


def _show(root: str, found: list, problems: dict) -> None:
    for entry in found:
        said = f"  DAMAGED: {problems[entry.path]}" if problems.get(entry.path) else ""
        print(
            f"{entry.name:<24} {_size(entry.size_bytes):>8} {_age(entry.built):>6}  {entry.path}{said}"
        )
    damaged = sum(map(bool, problems.values()))
    verified = f", {damaged} damaged" if problems else ""
    print(
        f"{len(found)} entries, {_size(sum(entry.size_bytes for entry in found))}{verified}, in {root}"
    )


def _facts(entry, problems: dict) -> dict:
    facts = {
        "name": entry.name,
        "path": entry.path,
        "size_bytes": entry.size_bytes,
        "built": entry.built,
    }
    return facts | ({"problem": problems[entry.path]} if entry.path in problems else {})


def _amount(text: str | None, units: dict[str, int], what: str, example: str) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([A-Za-z]?)", text)
    unit = (
        None if found is None else next((u for u in units if u.lower() == found[2].lower()), None)
    )
    if unit is None:
        raise ValueError(
            f"{what} {text!r}, expected a number and one of {', '.join(filter(None, units))}, such as {example}"
        )
    return int(found[1]) * units[unit]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _age(built: float) -> str:
    seconds = max(time.time() - built, 0)
    for unit in ("w", "d", "h", "m"):
        if seconds >= _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.0f}s"
