# SPDX-License-Identifier: Apache-2.0
"""A page for each family of operators: schemas, docstrings and kernels, with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import measured

from codegen.gpu_record import untested
from codegen.operators.folders import read_folders
from codegen.operators.operator_file import Operator
from codegen.python.docs import operator_section

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "bench" / "results" / "cuda_tests.jsonl"


@cache
def _families() -> dict[str, list[Operator]]:
    """By the name of their folder."""
    operators, mistakes = read_folders([ROOT / "ops"])
    if mistakes:
        raise mistakes[0]
    families: dict[str, list[Operator]] = {}
    for op in operators:
        families.setdefault(op.path.parent.name, []).append(op)
    return dict(sorted(families.items()))


def briefs() -> Iterator[tuple[str, str]]:
    """Each family's name and its operators."""
    for name, operators in _families().items():
        yield name, " ".join(f"`{op.name}`" for op in operators)


def pages() -> dict[str, str]:
    """Markdown by the family's name."""
    without = untested([op for family in _families().values() for op in family], ROOT, RECORD)
    return {name: _page(name, family, without) for name, family in _families().items()}


def _page(name: str, operators: list[Operator], without: list[str]) -> str:
    lines = [f"# {name}", ""]
    for op in operators:
        lines += [*operator_section(op, without), "", *measured.tables(op.name)]
    return "\n".join(lines) + "\n"
