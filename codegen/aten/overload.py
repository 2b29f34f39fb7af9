# SPDX-License-Identifier: Apache-2.0
"""One overload, read from the text of its schema as torch prints it.

Torch's own grammar, wider than that of operator files (codegen/schema/schema.py): views, classes, dictionaries.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from ..schema.params import split

KINDS = {
    "Tensor": "Tensor",
    "Scalar": "Scalar",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "bool": "bool",
    "SymBool": "bool",
    "str": "str",
    "ScalarType": "dtype",
    "Layout": "layout",
    "MemoryFormat": "format",
    "Device": "device",
    "Generator": "generator",
}
_VALUE = re.compile(
    r"(?P<base>Dict\(.*?\)|[\w.]+)(?P<alias>\([^)]*\))?"
    r"(?P<elements>\?)?(?:(?P<list>\[(?P<count>\d*)\]))?(?P<optional>\?)?"
    r"(?: (?P<name>\w+))?(?:=(?P<default>.*))?"
)
# Kernels write running statistics in training, also where the schema marks nothing.
_RUNNING = ("running_mean", "running_var")
_TRAINING = ("training", "use_input_stats")
_NOT_WRITTEN = ("backward", "no_update")


@dataclass
class Value:
    """A parameter or a result."""

    name: str
    type: str  # as the schema has it, without alias: "SymInt[2]?"
    kind: str  # of KINDS, or "other": nothing that can be made here
    alias: str  # "a", of "Tensor(a!)"; "" where there is none
    mutable: bool = False
    list: bool = False
    optional: bool = False
    optional_elements: bool = False
    fixed_count: int | None = None
    keyword_only: bool = False
    default: str | None = None  # its text
    written_unmarked: str = (
        ""  # written all the same: "always", or the name of the bool that says so
    )

    @property
    def plain_default(self) -> Any:
        """The default as Python's value; "int[2] padding=0" is two zeros."""
        if self.default is None or self.default.lstrip("-") in ("inf", "nan"):
            return None if self.default is None else float(self.default)
        value = ast.literal_eval(self.default)
        spread = self.fixed_count and not isinstance(value, (list, type(None)))
        return [value] * self.fixed_count if spread else value


@dataclass
class Overload:
    """A schema taken apart."""

    full_name: str  # "add.Tensor", "relu"
    schema: str
    params: list[Value]
    results: list[Value]

    @property
    def name(self) -> str:
        """Without the overload's: "add"."""
        return self.full_name.partition(".")[0]

    @property
    def overload(self) -> str:
        """Of "add.Tensor": "Tensor"; empty where it has no name."""
        return self.full_name.partition(".")[2]

    @property
    def kind(self) -> str:
        """out, in-place, mutable (writes another argument), view, factory (no tensor goes in) or functional."""
        written = [param for param in self.params if param.mutable]
        if any(param.keyword_only for param in written):
            return "out"
        if written:
            return "in-place" if self.params[0].mutable else "mutable"
        if any(result.alias for result in self.results):
            return "view"
        makes = any(result.kind == "Tensor" for result in self.results)
        takes = any(param.kind == "Tensor" for param in self.params)
        return "factory" if makes and not takes else "functional"

    @property
    def hidden_writes(self) -> dict[str, str]:
        """What is written unmarked, and when."""
        return {
            param.name: param.written_unmarked for param in self.params if param.written_unmarked
        }

    @property
    def why_not(self) -> str:
        """Why it cannot be called from here; empty where it can."""
        for value in (*self.params, *self.results):
            if value.kind == "other":
                what = f"{value.type} {value.name}".rstrip()
                return f"it has a {what}, which only torch can make"
            if value.kind == "str" and (value.list or "dim" in value.name):  # until torch 2.12
                return (
                    f"its {value.name} are names of dimensions, which only torch's tensors can have"
                )
        return ""

    def needs_glue(self, lists: bool) -> str:
        """Why torch's C shim cannot call it; empty where it can. lists: whether it converts lists and text."""
        for param in self.params:
            if param.kind in ("Scalar", "generator"):
                return f"a {param.type} ({param.name})"
        for value in (*self.params, *self.results):
            if not lists and (value.list or value.kind == "str"):
                return f"a {value.type} {value.name}".rstrip()
        types = {result.type for result in self.results}
        if len(types) > 1:
            return "results of different types"
        odd = next((r.type for r in self.results if r.kind in ("Scalar", "str")), None)
        return f"a result of type {odd}" if odd else ""


def read_overload(schema: str) -> Overload:
    """Raises ValueError where the text is none of torch's grammar."""
    head, arrow, results = schema.rpartition(") -> ")
    name, bracket, arguments = head.partition("(")
    if not (arrow and bracket):
        raise ValueError(f"no schema of torch's: {schema}")
    found = Overload(name, schema, [], [])
    keyword_only = False
    for part in split(arguments) if arguments else []:
        if part == "*":
            keyword_only = True
            continue
        param = _value(part, schema)
        param.keyword_only = keyword_only
        found.params.append(param)
    _mark_hidden_writes(found)
    if results.startswith("("):
        results = results[1:-1]
    found.results = [_value(part, schema) for part in split(results)] if results else []
    return found


def _value(text: str, schema: str) -> Value:
    match = _VALUE.fullmatch(text)
    if not match:
        raise ValueError(f"'{text}' is not understood, in {schema}")
    is_list, base, elements = match["list"] is not None, match["base"], match["elements"] or ""
    return Value(
        name=match["name"] or "",
        type=f"{base}{elements}{match['list'] or ''}{match['optional'] or ''}",
        kind=KINDS.get(base, "other"),
        alias=re.sub(r"\W.*", "", (match["alias"] or "")[1:]),
        mutable="!" in (match["alias"] or ""),
        list=is_list,
        optional=bool(match["optional"] or (elements and not is_list)),
        optional_elements=bool(elements and is_list),
        fixed_count=int(match["count"]) if match["count"] else None,
        default=match["default"],
    )


def _mark_hidden_writes(found: Overload) -> None:
    if any(word in found.name for word in _NOT_WRITTEN):
        return
    switch = next((param.name for param in found.params if param.name in _TRAINING), "always")
    for param in found.params:
        if param.name in _RUNNING and param.optional and not param.mutable:
            param.written_unmarked = switch
