# SPDX-License-Identifier: Apache-2.0
"""A call of a vendor's library of operators, as text: `aclnnRmsNorm(x, weight, eps:double, out)`.

The device is told by the function's name: aclnn functions are those of Ascend's libopapi.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..schema.binding import Binding
from ..schema.dtypes import dtype_name
from ..schema.expressions import Expr
from ..schema.operator_sections import text_of, texts_of
from ..schema.params import Param, unquoted
from ..schema.source import Mistake, check_one_of, listed, nearest
from .binary_call import known_sizes, size_expression

DEVICE = "ascend"
# What the functions take by value -> kinds of arguments that become it.
TYPES = {"int64": ("int", "bool"), "int8": ("int",), "bool": ("bool",), "double": ("float",)}
_CALL = re.compile(r"(aclnn[A-Z]\w*)\s*\((.*)\)", re.ASCII | re.DOTALL)
_VIEW = re.compile(r"(rows|transposed|reduced|scalar|dtype)\s*\((.*)\)", re.ASCII | re.DOTALL)
_EQUALS = re.compile(r"(\w+)\s*==\s*'(\w*)'", re.ASCII)
_ELSE = re.compile(r"(\w+)\s+else\s+1/sqrt\((.*)\)", re.ASCII)
_TEXT = re.compile(r"'(\w+)'", re.ASCII)
_LANGUAGE = (
    "a tensor, rows(x), transposed(x), reduced(x, float32), [sizes], scalar(number), dtype(x), None, 'text', "
    "a number or argument with its type, mode == 'text', scale else 1/sqrt(D)"
)
_OBJECTS = ("tensor", "rows", "transposed", "reduced", "sizes", "scalar")  # that a call makes
MOST_OBJECTS = 24  # kAnyopAclnnObjects
_EXAMPLE = 'write it like "aclnnRmsNorm(x, weight, eps:double, out, reduced(x, float32))"'


@dataclass(frozen=True)
class Passed:
    """One argument of the function."""

    kind: str  # "tensor", "rows", "transposed", "reduced", "sizes", "scalar", "dtype", "equals", "else", "text",
    # "none", or of TYPES
    param: Param | None = None
    values: tuple[
        Expr, ...
    ] = ()  # of "sizes", of a whole number; last size of "reduced", size of "else"
    real: float = 0  # of "scalar" and "double", where they are no argument
    text: str = ""  # the dtype of "reduced", the text of "equals", "text"


@dataclass(frozen=True)
class LibraryCall:
    """The function and what it gets."""

    function: str
    arguments: tuple[Passed, ...]
    same: tuple[Param, ...]  # tensors that must have one dtype
    within: tuple[tuple[str, Expr, Expr], ...]  # "E <= D": what calls must have that it takes


def is_library(backend: str) -> bool:
    """Whether the kernels of a backend are such calls: ascend, ascend_bias."""
    return backend == DEVICE or backend.startswith(DEVICE + "_")


def read_library_call(entry: dict[str, Any], params: list[Param], binding: Binding) -> LibraryCall:
    """Of `ascend = { call = "aclnnSilu(x, out)", same = ["x", "out"] }`."""
    text = text_of(entry.get("call"), "call")
    match = _CALL.fullmatch(text)
    if not match:
        raise Mistake(f"call '{text}'", "a call of an aclnn function", _EXAMPLE)
    reader = _Reader(params, binding)
    arguments = tuple(reader.argument(part) for part in _parts(match[2]))
    objects = sum(1 for a in arguments if a.kind in _OBJECTS)
    if objects > MOST_OBJECTS:
        found = f"{objects} tensors, lists of sizes and scalars"
        raise Mistake(found, f"at most {MOST_OBJECTS}", "call another function")
    given = [a.param for a in arguments if a.kind in ("tensor", "rows")]
    for param in params:
        if (param.output or param.mutated) and param not in given:
            raise Mistake(
                f"call without '{param.name}', which the function must write",
                "every result and every argument that is written",
                f"pass {param.name}",
            )
    same = tuple(reader.tensor(name) for name in texts_of(entry.get("same", []), "same"))
    within = tuple(map(reader.within, texts_of(entry.get("within", []), "within")))
    return LibraryCall(match[1], arguments, same, within)


def _parts(text: str) -> list[str]:
    """What stands between commas that are in no bracket."""
    parts, begin = [], 0
    for at, char, depth in unquoted(text):
        if char == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()] if text.strip() else []


class _Reader:
    def __init__(self, params: list[Param], binding: Binding) -> None:
        self.by_name = {param.name: param for param in params}
        self.known = known_sizes(params, binding)
        self.binding = binding

    def tensor(self, name: str) -> Param:
        tensors = [p.name for p in self.by_name.values() if p.is_tensor and not p.is_list]
        check_one_of(name, tensors, f"'{name}' in the call", "a tensor", _EXAMPLE)
        return self.by_name[name]

    def argument(self, text: str) -> Passed:
        if text == "None":
            return Passed("none")
        if text.startswith("[") and text.endswith("]") and text[1:-1].strip():
            return Passed("sizes", values=tuple(map(self.size, _parts(text[1:-1]))))
        if match := _VIEW.fullmatch(text):
            return self.view(match[1], _parts(match[2]), text)
        if match := _EQUALS.fullmatch(text):
            return Passed("equals", self.number(match[1], "str"), text=match[2])
        if match := _TEXT.fullmatch(text):
            return Passed("text", text=match[1])
        if match := _ELSE.fullmatch(text):
            param = self.number(match[1], "float", optional=True)
            return Passed("else", param, (self.size(match[2]),))
        name, _, kind = (part.strip() for part in text.partition(":"))
        param = self.by_name.get(name)
        if param is not None and param.is_tensor and not kind:
            return Passed("tensor", self.tensor(name))
        if param is not None and not param.is_tensor:
            default = {"int": "int64", "bool": "bool"}.get(param.kind, "")
            return Passed(self.type(text, param.kind, kind or default), self.number(name))
        return self.constant(text, name, kind)

    def constant(self, text: str, name: str, kind: str) -> Passed:
        if name in ("true", "false") and kind in ("", "bool"):
            return Passed("bool", values=(int(name == "true"),))
        if kind == "double":
            return Passed("double", real=self.real(name))
        if not re.fullmatch(r"[\w\s+\-*/()%,.]+", name, re.ASCII):
            raise Mistake(f"'{text}' in the call", _LANGUAGE, _EXAMPLE)
        if name.isidentifier() and name not in self.known:
            names = [*self.by_name, *self.known]
            raise Mistake(f"'{text}' in the call", _LANGUAGE, nearest(name, names, _EXAMPLE))
        return Passed(self.type(text, "int", kind or "int64"), values=(self.size(name),))

    def view(self, view: str, parts: list[str], text: str) -> Passed:
        if len(parts) not in ((2, 3) if view == "reduced" else (1,)):
            raise Mistake(f"'{text}' in the call", _LANGUAGE, _EXAMPLE)
        if view == "scalar":
            if parts[0] in self.by_name:
                return Passed("scalar", self.number(parts[0], "float"))
            return Passed("scalar", real=self.real(parts[0]))
        param = self.tensor(parts[0])
        if view == "rows" and (param.layout != "contiguous" or param.expanded):
            raise Mistake(f"'{text}', whose strides are free", "a contiguous tensor", _EXAMPLE)
        if view == "dtype":
            return Passed("dtype", param)
        if view != "reduced":
            return Passed(view, param)
        last = self.size(parts[2] if len(parts) > 2 else "1")
        return Passed(view, param, (last,), text=dtype_name(parts[1]))

    def number(self, name: str, kind: str = "", optional: bool = False) -> Param:
        """An argument by value that every call has, or an optional one."""
        param = self.by_name.get(name)
        fitting = [
            p.name for p in self.by_name.values()
            if not (p.is_tensor or p.is_list) and p.optional == optional and kind in ("", p.kind)
        ]  # fmt: skip
        if param is None or name not in fitting:
            which = "that is optional" if optional else "that every call has"
            what = f"{'an' if not kind else 'a ' + kind} argument {which}"
            raise Mistake(f"'{name}' in the call", f"{what} ({listed(fitting)})", _EXAMPLE)
        return param

    def type(self, text: str, kind: str, stated: str) -> str:
        fitting = [name for name, kinds in TYPES.items() if kind in kinds]
        if stated not in fitting:
            raise Mistake(
                f"'{text}', of type {kind}", f"it as {listed(fitting)}", "correct the type"
            )
        return stated

    def within(self, text: str) -> tuple[str, Expr, Expr]:
        sides = text.split("<=")
        if len(sides) != 2:
            raise Mistake(f"within '{text}'", "two sizes with <= between them", 'write "E <= D"')
        left, right = (size_expression(side, "within", self.known, self.binding) for side in sides)
        return text, left, right

    def size(self, text: str) -> Expr:
        return size_expression(text, "call", self.known, self.binding)

    def real(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise Mistake(f"'{text}' in the call", "a number", _EXAMPLE) from None
        if abs(value) > 1e300 or value != value:
            raise Mistake(f"'{text}' in the call", "a finite number", _EXAMPLE)
        return value
