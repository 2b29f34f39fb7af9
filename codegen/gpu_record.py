# SPDX-License-Identifier: Apache-2.0
"""Which CUDA kernels were tested on a GPU as they are: a hash of all that they are made of, and the record of tests."""

from __future__ import annotations

import json
from pathlib import Path

from .code_hash import INCLUDE, code_of, hash_of_code
from .operators.operator_file import Operator


def hash_of_sources(op: Operator, root: Path, device: str = "cuda") -> str | None:
    """Of the operator's file, a device's kernels and the headers of the tree that they include; None without them."""
    files = [file for kernel in op.kernels if kernel.device == device for file in kernel.files]
    if not files:
        return None
    found: dict[Path, bytes] = {op.path.resolve(): code_of(op.path)}
    while files:
        file = files.pop().resolve()
        if file in found:
            continue
        found[file] = code_of(file)
        for include in INCLUDE.findall(file.read_text(encoding="utf-8", errors="replace")):
            places = (file.parent / include, root / "include" / include, root / include)
            files += [place for place in places if place.is_file()][:1]
    return hash_of_code(found.values())


def on_gpus(record: Path) -> dict[str, dict[str, str]]:
    """What the newest line of the record about each operator says: sources, gpu, commit."""
    newest = {}
    for line in record.read_text(encoding="utf-8").splitlines() if record.is_file() else ():
        entry = json.loads(line)
        newest.update(dict.fromkeys(entry.get("sources", ()), entry))
    return {
        name: {"sources": entry["sources"][name], "gpu": entry["gpu"], "commit": entry["commit"]}
        for name, entry in newest.items()
    }


def untested(operators: list[Operator], root: Path, record: Path) -> list[str]:
    """The operators with CUDA kernels that are not those of the record."""
    known = on_gpus(record)
    hashes = all_hashes(operators, root).items()
    return [name for name, found in hashes if known.get(name, {}).get("sources") != found]


def all_hashes(operators: list[Operator], root: Path) -> dict[str, str]:
    """By operator, of those with CUDA kernels."""
    hashes = {op.full_name: hash_of_sources(op, root) for op in operators}
    return {name: found for name, found in hashes.items() if found}
