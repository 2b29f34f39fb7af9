# SPDX-License-Identifier: Apache-2.0
"""Typed C++ functions: <namespace>/ops.h, inline over anyop/invoke.h."""

from __future__ import annotations

import math
from typing import Any

from ..operators.operator_file import Operator
from ..schema.dtypes import DTYPES
from ..schema.fields import camel
from ..schema.params import Param
from ..text.c_text import c_comment, c_string

_TYPES = {
    "int": "int64_t", "float": "double", "bool": "bool", "str": "std::string",
    "ScalarType": "AnyopDtype", "Tensor": "anyop::Tensor",
}  # fmt: skip
# The enumerators of AnyopDtype, in the order of DTYPES.
_ENUMERATORS = (
    "Bool", "UInt8", "Int8", "Int16", "Int32", "Int64", "Float16", "BFloat16", "Float32", "Float64",
    "Complex64", "Complex128", "Float8E4M3FN", "Float8E5M2", "UInt16", "UInt32", "UInt64",
)  # fmt: skip


def cpp_path(namespace: str) -> str:
    """Where the functions of a namespace lie below the output folder, and how they are included."""
    return f"{namespace}/ops.h"


def write_cpp(namespace: str, operators: list[Operator]) -> str:
    """The header of one namespace."""
    guard = f"{namespace}_ops_h_".upper()
    parts = [
        f"/* Generated from {len(operators)} operator files; do not edit. {namespace} in C++. */",
        f"#ifndef {guard}\n#define {guard}\n",
        "#include <cmath>\n#include <cstdint>\n#include <optional>\n#include <string>",
        "#include <vector>\n",
        '#include "anyop/invoke.h"\n',
        "/* Behind the arguments stand the results: one left out is made on the CPU, one given is",
        "   written and returned. stream: that of the tensors' device. A failure throws Error. */",
        f"namespace {namespace} {{\n",
        *(_function(op) + _held(op) for op in operators),
        f"}} /* namespace {namespace} */\n",
        f"#endif /* {guard} */\n",
    ]
    return "\n".join(parts)


def _function(op: Operator) -> str:
    results, count = f"{camel(op.name)}Results", len(op.outputs)
    handle = _free("op", {param.name for param in op.params})
    lines = [f"/* {c_comment(op.brief)}\n   {c_comment(op.schema)} */"]
    if count > 1:
        lines.append(f"struct {results} {{")
        lines += [f"  anyop::Tensor {param.name};" for param in op.outputs]
        lines.append("};")
    find = f"anyop::internal::FindOperator({c_string(op.full_name)})"
    head, *body = _definition(op, f"inline {_result(op)} {op.name}(", " {", handle)
    lines += [head, f"  static const AnyopOperator* const {handle} = {find};", *body]
    return "\n".join([*lines, "}\n"])


def _held(op: Operator) -> str:
    """Of an operator that takes lists: its function with a handle (anyop/held.h)."""
    if not any(param.is_list and param.is_tensor for param in op.inputs):
        return ""
    name = f"Held{camel(op.name)}"
    lines = [
        f"\n/* {op.name} for lists that come again: see anyop::Held. */",
        f"struct {name} : anyop::Held {{",
        f"  {name}() : Held({c_string(op.full_name)}) {{}}",
    ]
    definition = _definition(op, f"  {_result(op)} operator()(", " const {", "*this")
    return "\n".join([*lines, *definition, "  }", "};\n"])


def _result(op: Operator) -> str:
    count = len(op.outputs)
    return ("void", "anyop::Tensor")[count] if count < 2 else f"{camel(op.name)}Results"


def _definition(op: Operator, head: str, tail: str, target: str) -> list[str]:
    """The head of a function, and a call of target with its arguments."""
    count, names = len(op.outputs), {param.name for param in op.params}
    stream, made = (_free(name, names) for name in ("stream", "made"))
    given = ", ".join(param.name for param in op.outputs)
    arguments = [target, stream, f"{{{{{given}}}}}" if count else "{}"]
    arguments += [param.name for param in op.inputs]
    invoke = f"anyop::internal::Invoke<{count}>("
    lines = [_declaration(op, head, tail, stream)]
    if count < 2:
        begin, end = ("  ", ");") if count == 0 else ("  return ", ")[0];")
        return [*lines, _aligned(begin + invoke, arguments, end)]
    lines.append(_aligned(f"  const auto {made} = {invoke}", arguments, ");"))
    return [*lines, "  return {" + ", ".join(f"{made}[{i}]" for i in range(count)) + "};"]


def _aligned(head: str, parts: list[str], tail: str) -> str:
    """A call or declaration, broken behind commas."""
    lines = [head]
    for i, part in enumerate(parts):
        text = part + (tail if i + 1 == len(parts) else ",")
        if len(lines[-1]) + len(text) > 99 and lines[-1].strip() and i:
            lines.append(" " * len(head))
        lines[-1] += text if lines[-1].endswith("(") or not lines[-1].strip() else f" {text}"
    return "\n".join(lines)


def _free(name: str, taken: set[str]) -> str:
    """A local name that no parameter has."""
    while name in taken:
        name += "_"
    return name


def _declaration(op: Operator, head: str, tail: str, stream: str) -> str:
    parts = []
    required = [i for i, param in enumerate(op.inputs) if not param.has_default]
    last_required = max(required, default=-1)
    for i, param in enumerate(op.inputs):
        # C++ has no keyword arguments: a default before a required argument is of no use.
        optional = param.has_default and i > last_required
        default = f" = {cpp_default(param)}" if optional else ""
        parts.append(f"{_by_reference(cpp_type(param))} {param.name}{default}")
    for param in op.outputs:
        if param.optional:
            parts.append(f"const std::optional<anyop::Tensor>& {param.name} = std::nullopt")
        else:
            parts.append(f"const anyop::Tensor& {param.name} = {{}}")
    parts.append(f"void* {stream} = nullptr")
    return _aligned(head, parts, ")" + tail)


def cpp_type(param: Param) -> str:
    """The C++ type of an argument."""
    kind = _TYPES[param.kind]
    if param.is_list:
        kind = f"std::vector<{f'std::optional<{kind}>' if param.optional_elements else kind}>"
    elif param.is_tensor:
        return kind  # an empty handle is None
    return f"std::optional<{kind}>" if param.optional else kind


def _by_reference(kind: str) -> str:
    return kind if kind in ("int64_t", "double", "bool", "AnyopDtype") else f"const {kind}&"


def cpp_default(param: Param) -> str:
    """The default as C++."""
    if param.default is None:
        return "{}" if param.is_tensor and not param.is_list else "std::nullopt"
    if param.is_list:
        kind = f"std::vector<{_TYPES[param.kind]}>"
        return f"{kind}{{{', '.join(_literal(param.kind, item) for item in param.default)}}}"
    return _literal(param.kind, param.default)


def _literal(kind: str, value: Any) -> str:
    if kind == "ScalarType":
        return f"kAnyop{_ENUMERATORS[DTYPES.index(value)]}"
    if kind == "bool":
        return "true" if value else "false"
    if kind == "str":
        return c_string(value)
    if kind == "int":
        return str(value) if value > -(2**63) else "INT64_MIN"
    if math.isfinite(value):
        return repr(value)
    return {math.inf: "INFINITY", -math.inf: "-INFINITY"}.get(value, "NAN")
