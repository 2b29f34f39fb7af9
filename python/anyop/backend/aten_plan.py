# SPDX-License-Identifier: Apache-2.0
"""The text of a kernel of form "aten" as a plan, which core and glue run without Python.

A plan is a list of steps for a machine with a stack; bindings/torch_glue/torch_aten_glue.h says what each does. What
cannot be written so is left to the text as a Python function, which does the same.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable
from typing import Any

from anyop.backend.call_text import CallText
from anyop.codegen.forms.calls import CONSTANTS, WORDS, split_name

Plan = tuple[
    tuple[int, ...], tuple, tuple[str, ...], int, int
]  # read by bindings/python/aten/aten_plan.cc
Schema = Callable[[str, "str | None"], Any]  # operator, overload -> torch's schema

Step = enum.IntEnum(
    "Step",
    "End Constant Default Value Name Call Item Ints Bools Tensors Size Shape Dtype IsCpu IsNarrow Number IsNone Equal "
    "Not Negate Arithmetic Jump JumpUnless And Or Result Results",
    start=0,
)  # AnyopAtenStepKind
_ARITHMETIC = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "%", ast.Pow: "^",
}  # fmt: skip
_LISTS = {"int": Step.Ints, "bool": Step.Bools, "Tensor": Step.Tensors}


class _Unfit(Exception):
    """A part that no plan has."""


def make_plan(
    text: CallText, into: CallText | None, inputs: list[str], results: list[str], schema: Schema
) -> Plan | None:
    """Of a text, and of the same with its results as arguments; None: it is for Python."""
    writer = _Writer(text, inputs, results, schema)
    try:
        writer.text(text)
        at = writer.into(into.tree) if into else -1
    except _Unfit:
        return None
    steps = tuple(number for step in writer.steps for number in step)
    return steps, tuple(writer.constants), tuple(writer.calls), len(writer.values), at


class _Writer:
    def __init__(
        self, text: CallText, inputs: list[str], results: list[str], schema: Schema
    ) -> None:
        self.sizes, self.results, self.schema = text.sizes, results, schema
        self.values = {name: at for at, name in enumerate([*inputs, *results])}
        self.steps: list[tuple[int, int]] = []
        self.constants: list[Any] = []
        self.calls: list[str] = []

    def add(self, step: Step, number: int = 0) -> int:
        self.steps.append((step, number))
        return len(self.steps) - 1

    def land(self, jump: int) -> None:
        """From that step to the next one."""
        self.steps[jump] = (self.steps[jump][0], len(self.steps))

    def constant(self, value: Any) -> None:
        self.constants.append(value)
        self.add(Step.Constant, len(self.constants) - 1)

    def text(self, text: CallText) -> None:
        first, value, rest = text.statements()
        self.named(first)
        if rest:
            self.choice(value, lambda: self.named(rest))
            self.add(Step.Results if len(self.results) > 1 else Step.Result)
        elif isinstance(value, ast.Tuple):
            if len(value.elts) != len(self.results):
                raise _Unfit
            for at, part in enumerate(value.elts):
                self.wanted(part, at)
        else:
            self.part(value)
            self.add(Step.Results if len(self.results) > 1 else Step.Result)
        self.add(Step.End)

    def named(self, statements: list[ast.Assign]) -> None:
        for statement in statements:
            self.part(statement.value)
            name = statement.targets[0].id
            self.add(Step.Name, self.values.setdefault(name, len(self.values)))

    def wanted(self, part: ast.expr, result: int) -> None:
        self.add(Step.Value, self.values[self.results[result]])
        self.add(Step.IsNone)
        self.add(Step.Not)
        skip = self.add(Step.JumpUnless)
        self.part(part)
        self.add(Step.Result, result)
        self.land(skip)

    def into(self, tree: ast.Module) -> int:
        begin = len(self.steps)
        self.part(tree.body[-1].value)
        self.add(Step.End)
        return begin

    def part(self, node: ast.expr, kind: str = "") -> None:
        """The steps that push the value; kind: the type that a list's elements are to have."""
        getattr(self, f"_{type(node).__name__.lower()}", self._unfit)(node, kind)

    def _unfit(self, node: ast.expr, kind: str) -> None:
        raise _Unfit

    def _constant(self, node: ast.Constant, kind: str) -> None:
        if type(node.value) is int and abs(node.value) >= 2**63:
            raise _Unfit
        self.constant(node.value)

    def _name(self, node: ast.Name, kind: str) -> None:
        if node.id in self.values:
            self.add(Step.Value, self.values[node.id])
        elif node.id in self.sizes:
            param, at = self.sizes[node.id]
            self.add(Step.Value, self.values[param])
            self.add(Step.Size, at)
        elif node.id in CONSTANTS and node.id != "cpu":
            self.constant(float("inf") if node.id == "inf" else (node.id,))
        else:
            raise _Unfit

    def _list(self, node: ast.List, kind: str) -> None:
        if kind not in _LISTS:
            raise _Unfit
        for element in node.elts:
            self.part(element)
        self.add(_LISTS[kind], len(node.elts))

    def _subscript(self, node: ast.Subscript, kind: str) -> None:
        self.part(node.value)
        self.add(Step.Item, node.slice.value)

    def _ifexp(self, node: ast.IfExp, kind: str) -> None:
        self.choice(node, lambda: None, kind)

    def choice(self, node: ast.IfExp, before_other: Callable[[], None], kind: str = "") -> None:
        self.part(node.test)
        other = self.add(Step.JumpUnless)
        self.part(node.body, kind)
        end = self.add(Step.Jump)
        self.land(other)
        before_other()
        self.part(node.orelse, kind)
        self.land(end)

    def _boolop(self, node: ast.BoolOp, kind: str) -> None:
        step = Step.And if isinstance(node.op, ast.And) else Step.Or
        jumps = []
        for value in node.values[:-1]:
            self.part(value)
            jumps.append(self.add(step))
        self.part(node.values[-1])
        for jump in jumps:
            self.land(jump)

    def _compare(self, node: ast.Compare, kind: str) -> None:
        against = node.comparators[0]
        self.part(node.left)
        if isinstance(against, ast.Constant) and against.value is None:
            self.add(Step.IsNone)
        elif not (isinstance(against, ast.Name) and against.id == "cpu"):  # device(x) says it
            self.part(against)
            self.add(Step.Equal)
        if isinstance(node.ops[0], (ast.IsNot, ast.NotEq)):
            self.add(Step.Not)

    def _binop(self, node: ast.BinOp, kind: str) -> None:
        self.part(node.left)
        self.part(node.right)
        self.add(Step.Arithmetic, ord(_ARITHMETIC[type(node.op)]))

    def _unaryop(self, node: ast.UnaryOp, kind: str) -> None:
        number: Any = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(node.op, ast.USub) and type(number) in (int, float):
            return self.constant(-number)
        self.part(node.operand)
        self.add(Step.Not if isinstance(node.op, ast.Not) else Step.Negate)

    def _call(self, node: ast.Call, kind: str) -> None:
        name, overload = split_name(node.func)
        if name in WORDS:
            return self.word(name, node)
        return self.call(name, overload, node.args, {k.arg: k.value for k in node.keywords})

    def call(self, name: str, overload: str | None, args: list, keywords: dict) -> None:
        """An argument that is None is on the stack already."""
        schema, args = self.schema(name, overload), list(args)
        full = f"{name}.{schema.overload_name}" if schema.overload_name else name
        places = [argument for argument in schema.arguments if argument.is_out]
        if places or full not in self.calls:
            self.calls.append(full)  # what writes is the last
        call = len(self.calls) - 1 if places else self.calls.index(full)
        for at, argument in enumerate(schema.arguments):
            if args and not argument.kwarg_only:
                value = args.pop(0)
                if value is not None:
                    self.part(value, _element(argument))
            elif argument.name in keywords:
                self.part(keywords.pop(argument.name), _element(argument))
            elif argument.has_default_value():
                self.add(Step.Default, call << 6 | at)
            else:
                raise _Unfit
        if args or keywords:
            raise _Unfit
        self.add(Step.Call, call)

    def word(self, name: str, node: ast.Call) -> None:
        if node.keywords or len(node.args) != (2 if name == "number" else 1):
            raise _Unfit
        for argument in node.args:
            self.part(argument)
        if name == "opmath":
            self.add(Step.IsNarrow)
            skip = self.add(Step.JumpUnless)
            float32 = ast.Name("float32", ast.Load())
            self.call("_to_copy", None, [None], {"dtype": float32})
            self.land(skip)
        else:
            steps = {"dtype": Step.Dtype, "shape": Step.Shape, "device": Step.IsCpu}
            self.add(steps.get(name, Step.Number))


def _element(argument: Any) -> str:
    """`int` of `Optional[List[int]]`; empty: it is no list."""
    text = str(argument.type)
    return text.partition("List[")[2].partition("]")[0]
