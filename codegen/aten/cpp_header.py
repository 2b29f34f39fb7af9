# SPDX-License-Identifier: Apache-2.0
"""Typed C++ functions for every overload of ATen: anyop/aten.h, inline over anyop/aten/invoke.h.

An overload add.Tensor is add_Tensor(self, other, alpha), and one of the functions add. relu is relu_default, too. Where
results are given, they come first, as in torch's own C++: add_out(out, self, other, alpha).

Functions are templates without a parameter that matters: the compiler then reads a body and does no more with it. CPU
seconds of g++ 12 -O2 for 5,533 functions, torch 2.13, least of 5: 0.39. The headers below are 0.18 of it, declarations
0.07. anyop/tensor.h would add 0.08; inline functions that are no templates 0.49; a template argument for the type of a
result, instead of a function for each, 0.15; a macro for the bodies 0.03.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..schema.names import C_KEYWORDS
from ..text.c_text import c_string

_TYPES = {
    "int": "Int",
    "float": "Float",
    "bool": "Bool",
    "str": "Str",
    "Scalar": "Scalar",
    "dtype": "Dtype",
    "layout": "Layout",
    "format": "Format",
    "device": "Device",
    "generator": "Generator",
}
_RESULTS = {"int": "int64_t", "float": "double", "bool": "bool", "dtype": "Dtype"}
_HEAD = """\
// Generated from the schemas of torch {torch}; do not edit. ATen in C++.
#ifndef ANYOP_ATEN_H_
#define ANYOP_ATEN_H_

#include "anyop/aten/invoke.h"

namespace anyop {{
namespace aten {{

constexpr char kTorchVersion[] = {version};
constexpr char kTable[] = {table};
constexpr char kGlue[] = {glue};

// Once a process, before the first call.
inline void Open(const char* table = kTable, const char* glue = kGlue) {{ OpenTable(table, glue); }}

"""
_TAIL = """
}  // namespace aten
}  // namespace anyop

#endif  // ANYOP_ATEN_H_
"""


def write_header(
    metadata: dict[str, Any], folder: str, table: str = "", glue: str | None = None
) -> str:
    """Writes folder/anyop/aten.h from what codegen/aten/facts.py makes, and returns its path.

    table and glue: the files that anyop::aten::Open() opens by default.
    """
    path = Path(folder) / "anyop" / "aten.h"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header_text(metadata, table, glue), encoding="utf-8")
    return str(path)


def header_text(metadata: dict[str, Any], table: str = "", glue: str | None = None) -> str:
    """The header."""
    version = metadata["torch"]
    head = _HEAD.format(
        torch=version, version=c_string(version), table=c_string(table), glue=c_string(glue or "")
    )
    functions = cpp_functions(metadata)
    structs = dict.fromkeys(each.struct for each in functions if each.struct)
    return "".join([head, *structs, *(each.text() for each in functions), _TAIL])


def cpp_functions(metadata: dict[str, Any]) -> list[Function]:
    """Each overload under a name of its own, and under the one that overloads share where it differs from them."""
    structs: dict[tuple[str, ...], str] = {}
    overloads = [each for each in metadata["overloads"].values() if each["callable"]]
    sharing = Counter(map(_shared_name, overloads))
    functions = [Function(each, _own_name(each, sharing), structs) for each in overloads]
    declared = {each.signature for each in functions}
    for each in overloads:
        shared = Function(each, _shared_name(each), structs)
        if shared.signature not in declared:
            declared.add(shared.signature)
            functions.append(shared)
    return functions


class Function:
    """One function of the header."""

    def __init__(self, overload: dict[str, Any], name: str, structs: dict[tuple[str, ...], str]):
        self.name = name
        self.schema = overload["schema"]
        self.arguments = [_plain(param["name"]) for param in overload["params"]]
        self.params = sorted(overload["params"], key=lambda param: not _is_out(param))
        self.types = [_type(param) for param in self.params]
        self.struct = ""
        self.result = self._result(overload["results"], structs)

    @property
    def signature(self) -> tuple[str, ...]:
        """What C++ tells functions apart by."""
        return (self.name, *self.types)

    def text(self) -> str:
        """Its definition."""
        declared = f"template <int = 0>\n{self.result} {self.name}("
        parts = [f"{type_} {_plain(p['name'])}" for type_, p in zip(self.types, self.params)]
        for at in range(len(parts) - 1, -1, -1):
            if "default" not in self.params[at]:
                break
            parts[at] += f" = {_default(self.params[at])}"
        lines = [
            f"{declared}{', '.join(parts)}) {{",
            f"  static Op aten_op({c_string(self.schema)});",
        ]
        if self.arguments:
            lines.append(f"  const AnyopAtenValue aten_values[] = {{{', '.join(self.arguments)}}};")
        values = "aten_values" if self.arguments else "nullptr"
        call = f"internal::Call_{self.result}(aten_op, {values}, {len(self.arguments)})"
        return "\n".join([*lines, f"  return {call};", "}\n"])

    def _result(self, results: list[dict[str, Any]], structs: dict[tuple[str, ...], str]) -> str:
        types = [_result_type(result) for result in results]
        if len(types) < 2:
            return types[0] if types else "void"
        names = [_plain(r.get("name", "")) or f"out{at}" for at, r in enumerate(results)]
        fields = tuple(f"{type_} {name};" for type_, name in zip(types, names))
        if fields not in structs:
            structs[fields] = _struct_name(results, names, set(structs.values()))
        name = structs[fields]
        taken = ", ".join(f"Take<{type_}>(&results.values[{at}])" for at, type_ in enumerate(types))
        self.struct = (
            f"struct {name} {{\n  {' '.join(fields)}\n}};\n"
            f"namespace internal {{\n"
            f"inline {name} Call_{name}(Op& op, const AnyopAtenValue* arguments, int32_t count) {{\n"
            f"  Owned<{len(fields)}> results;\n"
            f"  op.Call(arguments, count, results.values);\n"
            f"  return {{{taken}}};\n}}\n}}\n"
        )
        return name


def _struct_name(results: list[dict[str, Any]], names: list[str], taken: set[str]) -> str:
    """After the results' names, which do not change with torch's version."""
    named = any(result.get("name") for result in results)
    name = "Results_" + ("_".join(names) if named else str(len(names)))
    while name in taken:
        name += "_"
    return name


def _own_name(overload: dict[str, Any], sharing: Counter) -> str:
    name = f"{_plain(overload['name'])}_{overload['overload'] or 'default'}"
    others = sharing[name] - (name == _shared_name(overload))
    return f"{name}_overload" if others else name  # add.out: add_out are add.Scalar_out, too


def _shared_name(overload: dict[str, Any]) -> str:
    given = any(_is_out(param) for param in overload["params"])
    return f"{overload['name']}_out" if given else _plain(overload["name"])


def _plain(name: str) -> str:
    return f"{name}_" if name in C_KEYWORDS else name


def _is_out(param: dict[str, Any]) -> bool:
    return bool(param.get("mutable") and param.get("keyword_only"))


def _type(param: dict[str, Any]) -> str:
    kind, optional = param["kind"], param.get("optional")
    if param.get("list"):
        name = "Tensors" if kind == "Tensor" else f"{_TYPES[kind]}s"
        name = "IntOrInts" if name == "Ints" and param.get("fixed_count") else name
        return f"const OptList<{name}>&" if optional else f"const {name}&"
    if kind == "Tensor":
        return "const Tensor&"
    return f"Opt<{_TYPES[kind]}>" if optional else _TYPES[kind]


def _result_type(result: dict[str, Any]) -> str:
    name = _RESULTS.get(result["kind"], result["kind"])
    return f"{name}List" if result.get("list") else name


def _default(param: dict[str, Any]) -> str:
    value = param["default"]
    if isinstance(value, list):
        items = "{" + ", ".join(map(_literal, value)) + "}"
        empty = not value and param.get("optional")  # {} would be None
        return f"std::initializer_list<{_TYPES[param['kind']]}>()" if empty else items
    return _literal(value)


def _literal(value: Any) -> str:
    if value is None:
        return "{}"
    if isinstance(value, bool):
        return str(value).lower()
    return c_string(value) if isinstance(value, str) else repr(value)
