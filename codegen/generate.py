# SPDX-License-Identifier: Apache-2.0
"""All files of a library of operators: headers and tables, and what is to be compiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .cpp import cpp_path, write_cpp
from .docs import docstring
from .folders import read_folders
from .header import header_path, write_header
from .library import write_library
from .metadata import metadata_json
from .operator_file import Operator
from .source import SchemaErrors
from .table import write_table


@dataclass
class Generated:
    """Texts by their path below the output folder, and those of them that the C compiler takes."""

    operators: list[Operator]
    files: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)


def generate(folders: Iterable[Path], library: str) -> Generated:
    """Reads the folders; raises SchemaErrors with every mistake found."""
    operators, errors = read_folders(folders)
    if errors:
        raise SchemaErrors(errors)
    return generate_library(operators, library)


def generate_library(operators: list[Operator], library: str) -> Generated:
    """What the operators need to become the library of that name."""
    made = Generated(operators)
    for op in operators:
        made.files[header_path(op)] = write_header(op)
        made.sources.append(f"{op.namespace}/ops/{op.name}_table.c")
        made.files[made.sources[-1]] = write_table(op, docstring(op), metadata_json(op))
    for namespace in sorted({op.namespace for op in operators}):
        of_namespace = [op for op in operators if op.namespace == namespace]
        made.files[cpp_path(namespace)] = write_cpp(namespace, of_namespace)
    made.sources.append(f"{library}_library.c")
    made.files[made.sources[-1]] = write_library(library, operators)
    return made
