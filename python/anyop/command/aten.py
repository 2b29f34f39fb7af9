# SPDX-License-Identifier: Apache-2.0
"""Show the operators of the installed torch, and what anyop.aten makes of them.

anyop aten list [PATTERN]         names of operators: all, or those that contain it (*, ? and [ make it a pattern)
anyop aten show NAME ...          schema and facts of "add.Tensor"; of every overload of "add"
anyop aten table                  where the table is, and what it counts; made where there is none
anyop aten table --force          make it anew (anyop does so by itself for another torch)
anyop aten table --out DIR        copy it and aten_metadata.json there
anyop aten header --out DIR       write DIR/anyop/aten.h, typed C++ functions of every overload, and beside it the table
                                  and the glue that they open
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter

_ACTIONS = ("list", "show", "table", "header")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `anyop aten`."""
    parser.add_argument("action", choices=_ACTIONS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="list: a pattern; show: operators")
    parser.add_argument("--force", action="store_true", help="table: make it anew")
    parser.add_argument("--out", metavar="DIR", help="table, header: a folder to write to")
    parser.add_argument("--json", action="store_true", help="list, show: JSON instead of lines")


def run(options: argparse.Namespace) -> int:
    """Does one of the four."""
    action = options.action
    for given, what, allowed in (
        (options.names, "NAME", ("list", "show")),
        (options.force, "--force", ("table",)),
        (options.out, "--out", ("table", "header")),
        (options.json, "--json", ("list", "show")),
    ):
        if given and action not in allowed:
            raise ValueError(f"{what} is not of anyop aten {action} but of {', '.join(allowed)}")
    return {"list": _list, "show": _show, "table": _table, "header": _header}[action](options)


def _list(options: argparse.Namespace) -> int:
    import fnmatch

    from anyop.aten import _table

    patterns = [n if any(c in n for c in "*?[") else f"*{n}*" for n in options.names] or ["*"]
    found = [
        name
        for name in _table.schemas()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if not found:
        raise LookupError(f"no operator of ATen is like {', '.join(options.names)}")
    print(json.dumps(found, indent=1) if options.json else "\n".join(found))
    return 0


def _show(options: argparse.Namespace) -> int:
    import anyop

    if not options.names:
        raise ValueError("which one? such as: anyop aten show add.Tensor")
    found = []
    for name in options.names:
        full = [name] if "." in name.removeprefix("aten::") else anyop.aten.overloads(name)
        found += [anyop.aten.metadata(each) for each in full]
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for overload in found:
        print(overload["schema"])
        print(f"  {'; '.join(_facts(overload))}")
    return 0


def _facts(overload: dict) -> list[str]:
    hidden = [param for param in overload["params"] if "written_unmarked" in param]
    needs = overload.get("needs_glue")
    return [
        overload["kind"],
        *([", ".join(overload["tags"])] if overload["tags"] else []),
        *(f"writes {p['name']} ({p['written_unmarked']}), unsaid by its schema" for p in hidden),
        "callable" if overload["callable"] else f"not callable: {overload['why_not']}",
        *([f"needs the glue: {needs}"] if needs else []),
    ]


def _table(options: argparse.Namespace) -> int:
    from anyop.aten import _table as table

    if options.force:
        table.import_torch()  # its seconds are not the table's
    start = time.perf_counter()
    path = table.remake() if options.force else table.table_path()
    seconds = time.perf_counter() - start
    metadata = table.metadata()
    overloads = metadata["overloads"].values()
    kinds = Counter(overload["kind"] for overload in overloads)
    print(
        f"torch {metadata['torch']}: {len(table.schemas()):,} operators, {len(overloads):,} overloads"
    )
    print(f"{sum(o['callable'] for o in overloads):,} can be called from here; those that cannot:")
    for overload in overloads:
        if not overload["callable"]:
            print(
                f"  {overload['name']}.{overload['overload'] or 'default'}: {overload['why_not']}"
            )
    print(
        f"{sum('needs_glue' in o for o in overloads):,} need the glue, which a C++ compiler builds once"
    )
    print(", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))
    print(f"{path} ({seconds:.2f} s)")
    if options.out:
        print(_copy(path, options.out))
        print(_copy(os.path.join(os.path.dirname(path), table.METADATA), options.out))
    return 0


def _copy(path: str, folder: str) -> str:
    """A program may have the old one open: it is replaced, not written to."""
    import shutil

    os.makedirs(folder, exist_ok=True)
    copy = os.path.abspath(os.path.join(folder, os.path.basename(path)))
    shutil.copyfile(path, f"{copy}.{os.getpid()}.part")
    os.replace(f"{copy}.{os.getpid()}.part", copy)
    return copy


def _header(options: argparse.Namespace) -> int:
    from anyop.aten import _table
    from anyop.codegen.aten.cpp_header import write_header
    from anyop.native.glues import aten_glue

    if not options.out:
        raise ValueError("--out is needed: the folder of the header")
    _table.import_torch()  # the glue is built with its headers
    glue = aten_glue.find_loaded()
    if glue is None:
        print(f"note: without the glue some operators are refused: {aten_glue.problem}")
    folder = os.path.join(options.out, "anyop")
    paths = [_copy(path, folder) for path in (_table.table_path(), glue) if path]
    print(write_header(_table.metadata(), options.out, *paths), *paths, sep="\n")
    return 0
