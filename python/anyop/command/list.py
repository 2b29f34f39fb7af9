# SPDX-License-Identifier: Apache-2.0
"""List operators: backends and schema of each; backends that cannot run on this machine in brackets.

Of everything that is loaded with anyop, or of the libraries and folders that are named; a folder of operator files is
built first.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys

from anyop._nearest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop list` takes."""
    parser.add_argument(
        "paths", nargs="*", metavar="DIR|LIB", help="a library or a folder; only theirs are listed"
    )
    parser.add_argument("--namespace", metavar="N", help="only operators of this namespace")
    parser.add_argument("--json", action="store_true", help="a JSON array instead of lines")


def run(options: argparse.Namespace) -> int:
    """Prints one line for each operator."""
    import anyop

    found = [name for path in options.paths for name in anyop.load(path)]
    rows = [_row(name) for name in (sorted(set(found)) if options.paths else anyop.list_ops())]
    if options.namespace is not None:
        rows = _of_namespace(rows, options.namespace)
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    shown = [
        ", ".join(f"({b})" if b in row["not_here"] else b for b in row["backends"]) for row in rows
    ]
    width = max(map(len, shown), default=0)
    for backends, row in zip(shown, rows):
        print(f"{backends:<{width}}  {row['schema']}")
    reasons = {f"{why}: {', '.join(names)}" for why, names in _reasons(rows).items()}
    if reasons:
        lines = ["in brackets: cannot run here", *sorted(f"  {text}" for text in reasons)]
        print("\n".join(lines), file=sys.stderr)
    return 0


def _reasons(rows: list[dict]) -> dict[str, list[str]]:
    """The backends that each reason keeps from running."""
    found: dict[str, list[str]] = {}
    for name, why in (item for row in rows for item in row["not_here"].items()):
        names = found.setdefault(why, [])
        if name not in names:
            names.append(name)
    return found


def _row(name: str) -> dict:
    import anyop
    from anyop._routes import implementations

    metadata = anyop.metadata(name)
    found = implementations(name)
    reasons = {i["name"]: _why_not(i) for i in found}
    return {
        "name": name,
        "namespace": metadata["namespace"],
        "schema": anyop.schema(name),
        "backends": [i["name"] for i in found],
        "not_here": {name: why for name, why in reasons.items() if why},
        "brief": metadata["brief"],
    }


def _why_not(implementation: dict) -> str:
    """Why an implementation runs no call on this machine, as far as can be told without importing anything."""
    from anyop.backend.python import missing

    device, form = implementation["device"], implementation["form"]
    if device not in ("any", *_devices()):
        return f"there is no {device} device"
    if implementation["state"] == "missing":
        return implementation["why"]
    if form == "flaggems_c" and not os.environ.get("FLAGGEMS_DIR"):
        return "needs FLAGGEMS_DIR, which is not set"
    text = json.loads(implementation["text"]) if form == "python" and implementation["text"] else {}
    needs = {"aten": ["torch"], "flaggems": ["torch", "flag_gems"], "flaggems_c": ["torch"]}
    own = [text["framework"], *(text.get("needs") or [])] if text else []
    return missing([*needs.get(form, []), *own]) or ""


@functools.cache
def _devices() -> set[str]:
    """Kinds of devices that are here."""
    from anyop.doctor import devices

    return {"cpu"} | {
        found.name.partition(":")[0] for found in devices.findings() if ":" in found.name
    }


def _of_namespace(rows: list[dict], namespace: str) -> list[dict]:
    kept = [row for row in rows if row["namespace"] == namespace]
    if not kept:
        there = sorted({row["namespace"] for row in rows})
        text = f"no operator of namespace '{namespace}'; there are those of {', '.join(there) or 'none'}"
        raise ValueError(text + did_you_mean(namespace, there))
    return kept
