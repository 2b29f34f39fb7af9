# SPDX-License-Identifier: Apache-2.0
"""The one function that a library of operators exports, and the list of its tables."""

from __future__ import annotations

from ..operators.operator_file import Operator
from ..text.c_text import c_comment, c_string
from .table import table_symbol


def write_library(name: str, operators: list[Operator]) -> str:
    """The .c file with AnyopLibraryEntry."""
    tables = [table_symbol(op) for op in operators]
    return "\n".join(
        [
            f"/* Generated from {len(tables)} operator files; do not edit. The library {c_comment(name)}. */",
            '#include "anyop/table.h"',
            "",
            *(f"extern const AnyopOp {table};" for table in tables),
            "",
            "static const AnyopOp* const kOps[] = {",
            *(f"    &{table}," for table in tables),
            "};",
            "",
            "static const AnyopLibrary kLibrary = {",
            "    sizeof(AnyopLibrary), ANYOP_ABI_VERSION,",
            f"    {c_string(name)}, kOps, {len(tables)}, 0,",
            "};",
            "",
            "#if defined(_WIN32)",
            "__declspec(dllexport)",
            "#else",
            '__attribute__((visibility("default")))',
            "#endif",
            "const AnyopLibrary* AnyopLibraryEntry(void);",
            "",
            "const AnyopLibrary* AnyopLibraryEntry(void) { return &kLibrary; }",
            "",
        ]
    )
