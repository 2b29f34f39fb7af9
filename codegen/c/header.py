# SPDX-License-Identifier: Apache-2.0
"""The header that a kernel includes: its argument struct and its declaration."""

from __future__ import annotations

import hashlib

from ..operators.operator_file import Operator
from ..text.c_text import c_comment


def header_path(op: Operator) -> str:
    """Where it lies below the output folder, and how it is included."""
    return f"{op.namespace}/ops/{op.name}.h"


def hash_macro(op: Operator) -> str:
    """Name of the macro that holds the hash of the struct's fields."""
    return f"ANYOP_HASH_{op.symbol.upper()}"


def args_hash(op: Operator) -> int:
    """Changes with every field's name, type and place."""
    text = ";".join(f"{field.type} {field.name}" for field in op.fields)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def write_header(op: Operator) -> str:
    """The .h file of one operator."""
    guard = f"{op.namespace}_ops_{op.name}_h_".upper()
    fields = []
    for field in op.fields:
        line = f"  {field.type} {field.name};"
        fields.append(line + (f" /* {c_comment(field.comment)} */" if field.comment else ""))
    kernels = [
        f"int32_t {k.function}(const {op.struct}* args, AnyopCall* call);"
        for k in op.kernels
        if k.is_compiled
    ]
    return "\n".join(
        [
            f"/* Generated from {c_comment(op.path.name)}; do not edit. For the kernels of {op.full_name}. */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            '#include "anyop/kernel.h"',
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            f"/* {c_comment(op.schema)} */",
            f"typedef struct {op.struct} {{",
            "  AnyopArgs base;",
            *fields,
            f"}} {op.struct};",
            "",
            "/* Of the fields above; whoever brings a kernel from elsewhere must show it. */",
            f"#define {hash_macro(op)} {args_hash(op):#018x}ull",
            "",
            *kernels,
            "",
            "#ifdef __cplusplus",
            '} /* extern "C" */',
            "#endif",
            "",
            f"#endif /* {guard} */",
            "",
        ]
    )
