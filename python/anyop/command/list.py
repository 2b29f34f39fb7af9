# SPDX-License-Identifier: Apache-2.0
"""List operators: backends and schema of each.

Of everything that is loaded with anyop, or of the libraries and folders that are named; a folder of operator files is
built first.
"""

from __future__ import annotations

import argparse
import json

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
    width = max((len(", ".join(row["backends"])) for row in rows), default=0)
    for row in rows:
        print(f"{', '.join(row['backends']):<{width}}  {row['schema']}")
    return 0


def _row(name: str) -> dict:
    import anyop

    metadata = anyop.metadata(name)
    return {
        "name": name,
        "namespace": metadata["namespace"],
        "schema": anyop.schema(name),
        "backends": anyop.backends(name),
        "brief": metadata["brief"],
    }


def _of_namespace(rows: list[dict], namespace: str) -> list[dict]:
    kept = [row for row in rows if row["namespace"] == namespace]
    if not kept:
        there = sorted({row["namespace"] for row in rows})
        text = f"no operator of namespace '{namespace}'; there are those of {', '.join(there) or 'none'}"
        raise ValueError(text + did_you_mean(namespace, there))
    return kept
