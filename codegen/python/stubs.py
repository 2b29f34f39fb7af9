# SPDX-License-Identifier: Apache-2.0
"""Type stubs (.pyi) of the operators of one namespace, for editors and type checkers."""

from __future__ import annotations

from ..operators.operator_file import Operator
from ..schema.params import Param
from ..text.python_text import python_docstring
from .docs import docstring, python_default, text_signature

_TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str", "ScalarType": "Any"}


def write_all_stubs(operators: list[Operator]) -> dict[str, str]:
    """Namespace -> the text of its .pyi file."""
    return {
        name: write_stubs([op for op in operators if op.namespace == name])
        for name in sorted({op.namespace for op in operators})
    }


def write_stubs(operators: list[Operator]) -> str:
    """The text of a .pyi file. Results are of the type of the tensors that go in."""
    head = [
        "# Generated from the operator files; do not edit.",
        '"""Operators of anyop: any array type that speaks DLPack goes in, the same comes out."""',
        "",
        "from collections.abc import Sequence",
        "from typing import Any, TypeVar",
        "",
        'Array = TypeVar("Array")',
        "",
    ]
    return "\n".join(head + [_function(op) for op in operators])


def _function(op: Operator) -> str:
    parts = []
    for param in op.inputs:
        if param.keyword_only and "*" not in parts:
            parts.append("*")
        default = f" = {python_default(param)}" if param.has_default else ""
        parts.append(f"{param.name}: {_type(param)}{default}")
    parts += [f"{param.name}: Array | None = None" for param in op.outputs]
    arguments = "".join(f"\n    {part}," for part in parts)
    text = python_docstring(docstring(op).removeprefix(text_signature(op)).strip())
    body = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    closing = "\n" if arguments else ""
    head = f"def {op.name}({arguments}{closing}) -> {_result(op)}:"
    return f'{head}\n    """{body.lstrip()}\n    """\n    ...\n'


def _type(param: Param) -> str:
    text = "Array" if param.is_tensor else _TYPES[param.kind]
    if param.is_list:
        text = f"Sequence[{text} | None]" if param.optional_elements else f"Sequence[{text}]"
        text += f" | {_TYPES[param.kind]}" if param.fixed_count else ""
    return text + (" | None" if param.optional else "")


def _result(op: Operator) -> str:
    types = ["Array | None" if param.optional else "Array" for param in op.outputs]
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]" if types else "None"
