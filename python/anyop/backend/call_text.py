# SPDX-License-Identifier: Apache-2.0
"""The text of a kernel of form "aten" as a Python function: names are bound once, nothing is looked up in a call.

The text is that of codegen/forms/calls.py, which says what may stand in it. Whose functions its operators are is the
caller's to say: ATen's, or another library's that has the same ones.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from anyop.codegen.forms import calls

Resolve = Callable[[str, "str | None"], Callable[..., Any]]  # operator, overload -> function


def _value(tree: ast.Module) -> ast.expr:
    """What a text's last statement is: an expression, as codegen's reader has made sure."""
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    return last.value


@dataclass(frozen=True)
class CallText:
    """A text that was read: its tree, and where its sizes are found."""

    tree: ast.Module
    sizes: Mapping[str, tuple[str, int]]  # size -> parameter, dimension

    @property
    def operators(self) -> list[tuple[str, str | None]]:
        """All that are called, with their overloads."""
        return list(dict.fromkeys(calls.called(self.tree)))

    @property
    def single(self) -> ast.Call | None:
        """The call, where the text is one operator of parameters and literals, and nothing else."""
        value = _value(self.tree)
        if len(self.tree.body) != 1 or not isinstance(value, ast.Call):
            return None
        words = {
            n.func.id
            for n in ast.walk(value)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        return value if len(self.operators) == 1 and "opmath" not in words else None

    def statements(self) -> tuple[list[ast.Assign], ast.expr, list[ast.Assign]]:
        """Names given to parts, what the text is, and the names that nothing but its last else asks for."""
        named, value = cast("list[ast.Assign]", self.tree.body[:-1]), _value(self.tree)
        if not isinstance(value, ast.IfExp):
            return named, value, []
        asked = _names(value.test) | _names(value.body)
        first: list[ast.Assign] = []
        for statement in reversed(named):
            if cast(ast.Name, statement.targets[0]).id in asked:
                asked |= _names(statement.value)
                first.insert(0, statement)
        return first, value, [statement for statement in named if statement not in first]


def read_call_text(text: str | Mapping[str, Any], names: list[str]) -> CallText:
    """Of a table's JSON, or of a kernel in the metadata, with the names of all parameters. Raises codegen's Mistake."""
    data = json.loads(text) if isinstance(text, str) else text
    tree = calls.parse_call(data["call"])
    sizes = {name: (param, at) for name, (param, at) in data["sizes"].items()}
    calls.check_names(tree, [*names, *sizes])
    return CallText(tree, sizes)


def compile_call(
    text: CallText,
    inputs: list[str],
    results: list[str],
    resolve: Resolve,
    words: Mapping[str, Any],
) -> Callable[..., Any]:
    """The function of inputs, then results' places (None: not wanted). `words` has calls.WORDS and calls.CONSTANTS."""
    writer = _Writer(resolve)
    first, value, rest = copy.deepcopy(text).statements()  # the writer changes them
    body = [_size(name, param, at) for name, (param, at) in text.sizes.items()]
    body += [writer.visit(statement) for statement in first]
    if rest:
        assert isinstance(value, ast.IfExp)
        body.append(ast.If(writer.visit(value.test), [ast.Return(writer.visit(value.body))], []))
        body += [writer.visit(statement) for statement in rest]
        value = writer.visit(value.orelse)
    elif isinstance(value, ast.Tuple):
        parts = [writer.visit(part) for part in value.elts]
        value = ast.Tuple([_if_wanted(*pair) for pair in zip(parts, results)], ast.Load())
    else:
        value = writer.visit(value)
    arguments = ast.arguments(
        [], [ast.arg(name) for name in (*inputs, *results)], None, [], [], None, []
    )
    function = ast.FunctionDef("call", arguments, [*body, ast.Return(value)], [])
    module = ast.fix_missing_locations(ast.Module([function], []))
    scope = {name: words[name] for name in calls.CONSTANTS if name not in (*inputs, *results)}
    scope |= {f"{name}()": words[name] for name in calls.WORDS} | writer.functions
    exec(compile(module, "<call>", "exec"), scope)
    return scope["call"]


class _Writer(ast.NodeTransformer):
    """Copies a tree; functions get names that no text can write."""

    def __init__(self, resolve: Resolve) -> None:
        self.resolve = resolve
        self.functions: dict[str, Any] = {"__builtins__": {}}

    def visit_Call(self, node: ast.Call) -> ast.Call:
        name, overload = calls.split_name(node.func)
        key = f"{name}()" if name in calls.WORDS else f"{name}.{overload or ''}"
        if name not in calls.WORDS and key not in self.functions:
            self.functions[key] = self.resolve(name, overload)
        keywords = [
            ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords
        ]
        return ast.Call(ast.Name(key, ast.Load()), list(map(self.visit, node.args)), keywords)


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _size(name: str, param: str, at: int) -> ast.stmt:
    return ast.parse(f"{name} = {param}.shape[{at}]").body[0]


def _if_wanted(part: ast.expr, result: str) -> ast.expr:
    wanted = ast.Compare(ast.Name(result, ast.Load()), [ast.IsNot()], [ast.Constant(None)])
    return ast.IfExp(wanted, part, ast.Constant(None))
