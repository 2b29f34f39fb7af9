# SPDX-License-Identifier: Apache-2.0
"""The formulas of [tangent]: text to a tree of calls, names and values, as the metadata holds it.

A tree is ["call", path, [trees], {name: tree}], ["name", name], ["value", literal] or
["or", ["name", name], number]: the tensor of that name or, where it is None, a number.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Any

from ..schema.source import Mistake

Tree = list[Any]
_EXAMPLE = "write it like 'linear(tangent_x, weight)'"


def parse_formula(text: str) -> Tree:
    """Reads one formula; its operators and names are checked elsewhere."""
    try:
        return _tree(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Mistake(f"the formula '{text}'", "a call of an operator", _EXAMPLE) from None


def _tree(node: ast.expr) -> Tree:
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.Name):
        return ["name", node.id]
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and len(node.values) == 2:
        name, number = map(_tree, node.values)
        if name[0] == "name" and number[0] == "value" and type(number[1]) in (int, float):
            return ["or", name, number[1]]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        found = _tree(node.operand)
        if found[0] == "value" and type(found[1]) in (int, float):
            return ["value", -found[1]]
    if isinstance(node, ast.Constant) and _is_literal(node.value):
        return ["value", node.value]
    raise Mistake(
        f"'{ast.unparse(node)}' in a formula",
        "a call of an operator, a name, a number, None, True, False or 'name or number'",
        _EXAMPLE,
    )


def _is_literal(value: object) -> bool:
    if value is None or type(value) is bool:
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float and math.isfinite(value)


def _call(node: ast.Call) -> Tree:
    path = ast.unparse(node.func)
    if not all(part.isidentifier() for part in path.split(".")) or path.count(".") > 1:
        raise Mistake(f"a call of '{path}'", "an operator such as mul or acme.scale", _EXAMPLE)
    keywords = {keyword.arg: _tree(keyword.value) for keyword in node.keywords}
    if None in keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
        raise Mistake(f"'*' in the call of '{path}'", "its arguments one by one", _EXAMPLE)
    return ["call", path.removeprefix("anyop."), [_tree(arg) for arg in node.args], keywords]


def children(tree: Tree) -> list[Tree]:
    """The trees right below one."""
    if tree[0] == "call":
        return [*tree[2], *tree[3].values()]
    return [tree[1]] if tree[0] == "or" else []


def walk(tree: Tree) -> Iterator[Tree]:
    """A tree and all below it."""
    yield tree
    for child in children(tree):
        yield from walk(child)


def is_value(tree: Tree | None, value: object) -> bool:
    """Whether a tree is this literal; False is not 0."""
    return (
        tree is not None
        and tree[0] == "value"
        and type(tree[1]) is type(value)
        and tree[1] == value
    )


def names(tree: Tree) -> set[str]:
    """All names in a tree."""
    return {part[1] for part in walk(tree) if part[0] == "name"}


def text_of_tree(tree: Tree) -> str:
    """The formula's text again, for errors."""
    if tree[0] == "call":
        parts = [*map(text_of_tree, tree[2])]
        parts += [f"{name}={text_of_tree(value)}" for name, value in tree[3].items()]
        return f"{tree[1]}({', '.join(parts)})"
    return f"{tree[1][1]} or {tree[2]}" if tree[0] == "or" else str(tree[1])
