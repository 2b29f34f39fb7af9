# SPDX-License-Identifier: Apache-2.0
"""The text of a kernel that is a call of somebody else's functions, as a tree of Python's ast that is checked.

An aten text is one expression, with names given to parts of it before it:

    scores = matmul(q, transpose.int(k, -1, -2)); softmax.int(scores, -1, None)
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from ..schema.dtypes import DTYPES
from ..schema.source import Mistake, listed, nearest

# Names that are no parameters, and functions of the language: the dtype of a tensor, its sizes, the kind of its
# device, itself in the dtype that ATen computes in (float32 for 16 bits), a number as it takes it (whole for integers).
CONSTANTS = (*DTYPES, "inf", "cpu")
WORDS = ("dtype", "shape", "device", "opmath", "number")
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
_LANGUAGE = (
    "calls of operators, names, numbers, text, None, True, False, lists, + - * / // ** of numbers, "
    "call(...)[0], 'a if mask is None else b', 'dtype(x) is bool' and, for several results, a tuple"
)


def parse_call(text: str) -> ast.Module:
    """Reads an aten text: assignments, then the expression. Its names are checked by check_names."""
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too deep"
        raise Mistake(f"call '{_cut(text)}' ({reason})", _LANGUAGE, "correct it") from None
    *before, last = tree.body or [None]
    if not isinstance(last, ast.Expr):
        raise Mistake(f"call '{_cut(text)}'", "an expression at its end", "write the result last")
    for statement in before:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            raise _unusable(statement)
        _check(statement.value)
    for part in last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]:
        _check(part)
    return tree


def results(tree: ast.Module) -> list[ast.expr] | None:
    """The expressions of several results; None where one call gives them all."""
    value = tree.body[-1].value
    return value.elts if isinstance(value, ast.Tuple) else None


def called(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Name and overload of each operator that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name, overload = split_name(node.func)
            if name not in WORDS:
                yield name, overload


def split_name(function: ast.expr) -> tuple[str, str | None]:
    """softmax.int is the overload int of softmax."""
    if isinstance(function, ast.Attribute):
        return function.value.id, function.attr
    return function.id, None


def free_names(tree: ast.Module) -> set[str]:
    """Parameters, sizes and dtypes that a text names."""
    found: set[str] = set()
    given: set[str] = set()
    for statement in tree.body:
        found |= set(_names(statement.value)) - given
        given |= {target.id for target in getattr(statement, "targets", ())}
    return found


def check_names(tree: ast.Module, known: list[str]) -> None:
    """Refuses a name that is neither known, nor a dtype, nor given before."""
    given: list[str] = []
    for statement in tree.body:
        for name in _names(statement.value):
            if name not in (*known, *CONSTANTS, *given):
                raise Mistake(
                    f"'{name}' in the call",
                    f"a parameter or a size ({listed([*known, *given])}), or a dtype",
                    nearest(name, [*known, *given, *CONSTANTS], "correct it"),
                )
        for target in getattr(statement, "targets", ()):
            if target.id in (*known, *CONSTANTS, *given):
                raise Mistake(f"'{target.id}' given again", "a new name", "rename it")
            given.append(target.id)


def _names(tree: ast.AST) -> Iterator[str]:
    """All names but those of functions, in order."""
    if isinstance(tree, ast.Name):
        yield tree.id
    for field, value in ast.iter_fields(tree):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field != "func":
                yield from _names(child)


def _check(node: ast.expr) -> None:
    """Refuses what is not of the language."""
    children = [node for node in ast.iter_child_nodes(node) if isinstance(node, ast.expr)]
    if isinstance(node, ast.Call):
        _check_function(node.func)
        if any(keyword.arg is None for keyword in node.keywords):
            raise _unusable(node)
        children = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Constant):
        good = node.value is None or type(node.value) in (bool, int, str)
        if not good and not (type(node.value) is float and math.isfinite(node.value)):
            raise _unusable(node)
    elif isinstance(node, ast.Subscript):
        if not isinstance(node.slice, ast.Constant) or type(node.slice.value) is not int:
            raise _unusable(node)
    elif isinstance(node, ast.Compare):
        if not _is_test(node):
            raise _unusable(node)
    elif isinstance(node, ast.BinOp):
        if not isinstance(node.op, _ARITHMETIC):
            raise _unusable(node)
    elif isinstance(node, ast.UnaryOp):
        if not isinstance(node.op, (ast.USub, ast.Not)):
            raise _unusable(node)
    elif not isinstance(node, (ast.Name, ast.List, ast.IfExp, ast.BoolOp)):
        raise _unusable(node)
    for child in children:
        _check(child)


def _is_test(node: ast.Compare) -> bool:
    """Such as x is None, dtype(x) is not dtype(y), device(x) is cpu, shape(x) == shape(y), mode == 'none'."""
    (operator, *more), against = node.ops, node.comparators[0]
    if more:
        return False
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        is_text = isinstance(against, ast.Constant) and type(against.value) is str
        return is_text or _word(node.left) == _word(against) == "shape"
    if not isinstance(operator, (ast.Is, ast.IsNot)):
        return False
    if isinstance(against, ast.Constant):
        return against.value is None
    is_constant = isinstance(against, ast.Name) and against.id in CONSTANTS
    return _word(node.left) in ("dtype", "device") and (is_constant or _word(against) == "dtype")


def _word(node: ast.expr) -> str | None:
    """The word of the language that is called."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if called and node.func.id in WORDS else None


def _check_function(function: ast.expr) -> None:
    parts = ast.unparse(function).split(".")
    plain = all(part.isascii() and part.isidentifier() for part in parts)
    if not plain or len(parts) > 2 or any(part.startswith("__") for part in parts):
        raise Mistake(
            f"a call of '{_cut(ast.unparse(function))}'",
            "an operator of ATen such as softmax or softmax.int",
            "correct it",
        )


def _unusable(node: ast.AST) -> Mistake:
    return Mistake(f"'{_cut(ast.unparse(node))}' in the call", _LANGUAGE, "write it with these")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
