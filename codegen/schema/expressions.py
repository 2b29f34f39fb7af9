# SPDX-License-Identifier: Apache-2.0
"""Integer expressions and conditions of letters: text to nested tuples that every emitter walks.

An expression is an int, a str (a letter or an integer argument), or a tuple whose first word is the
operation: ("+", a, b), likewise - * // % ceildiv min max == != < <= and or; ("rank", "X") and
("numel", "X"), where ("X", "Y") in place of "X" is a broadcast of groups; ("text", "mode", "sum"),
which is 1 where the argument mode is the text sum, else 0, and ("text", "dtype(x)", "int8"), which
is 1 where the tensor x has that dtype.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator

from .names import check_letter
from .source import Mistake

Expr = int | str | tuple

_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARISON = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceildiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}
_LANGUAGE = "integers, letters, + - * // %, ceil(a/b), min(a,b), max(a,b), rank(X), numel(X), (mode == 'text')"


def parse_expression(text: str) -> Expr:
    """An integer expression."""
    return _arithmetic(_python(text), text)


def parse_condition(text: str) -> Expr:
    """Comparisons joined by `and` and `or`."""
    return _condition(_python(text), text)


def _python(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Mistake(f"unusable expression '{text}'", _LANGUAGE, "correct it") from None


def _unusable(node: ast.AST, text: str, fix: str = "use only these") -> Mistake:
    part = ast.unparse(node)
    found = f"'{part}' in '{text}'" if part != text else f"'{text}'"
    return Mistake(f"unusable expression {found}", _LANGUAGE, fix)


def _arithmetic(node: ast.expr, text: str) -> Expr:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _small(node.value, text)
    if isinstance(node, ast.Name):
        check_letter(node.id)
        return node.id
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _operation("-", 0, _arithmetic(node.operand, text), text)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        operation = _ARITHMETIC[type(node.op)]
        return _operation(
            operation, _arithmetic(node.left, text), _arithmetic(node.right, text), text
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        raise _unusable(node, text, "write // to round down or ceil(a/b) to round up")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node.func.id, node, text)
    if isinstance(node, ast.Compare) and (comparison := _text_comparison(node)):
        return comparison
    raise _unusable(node, text)


def _text_comparison(node: ast.Compare) -> Expr | None:
    """Of `mode == 'sum'`, `mode in ('sum', 'mean')` or their opposites; None for any other comparison."""
    operation, right, name = node.ops[0], node.comparators[0], node.left
    many = isinstance(operation, ast.In | ast.NotIn) and isinstance(right, ast.Tuple)
    values = right.elts if many and isinstance(right, ast.Tuple) else [right]
    constants = [part.value for part in values if isinstance(part, ast.Constant)]
    words = [value for value in constants if isinstance(value, str)]
    called = "{}"
    if isinstance(name, ast.Call) and ast.unparse(name.func) == "dtype" and len(name.args) == 1:
        name, called = name.args[0], "dtype({})"
    if (
        len(node.ops) > 1
        or not (many or isinstance(operation, ast.Eq | ast.NotEq))
        or not (words and len(words) == len(values))
        or not isinstance(name, ast.Name)
    ):
        return None
    check_letter(name.id)
    found = joined_texts([(called.format(name.id), word) for word in words])
    return ("==", found, 0) if isinstance(operation, ast.NotEq | ast.NotIn) else found


def joined_texts(pairs: list[tuple[str, str]]) -> Expr:
    """1 where one of these names is its text."""
    return _joined("or", [("text", name, value) for name, value in pairs])


def _call(name: str, node: ast.Call, text: str) -> Expr:
    arguments = node.args
    if name == "ceil" and len(arguments) == 1:
        division = arguments[0]
        if not (isinstance(division, ast.BinOp) and isinstance(division.op, ast.Div)):
            raise _unusable(node, text, "write ceil(a/b)")
        return _operation(
            "ceildiv", _arithmetic(division.left, text), _arithmetic(division.right, text), text
        )
    if name in ("min", "max") and len(arguments) >= 2:
        result = _arithmetic(arguments[0], text)
        for argument in arguments[1:]:
            result = _operation(name, result, _arithmetic(argument, text), text)
        return result
    if name in ("rank", "numel") and len(arguments) == 1:
        if isinstance(arguments[0], ast.Name):
            return (name, arguments[0].id)
        if groups := _broadcast(arguments[0]):
            return (name, groups)
    raise _unusable(node, text)


def _broadcast(node: ast.expr) -> tuple[str, ...]:
    """("X", "Y") of broadcast(*X, *Y); empty for anything else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords):
        return ()
    named = [part.value for part in node.args if isinstance(part, ast.Starred)]
    names = tuple(part.id for part in named if isinstance(part, ast.Name))
    whole = node.func.id == "broadcast" and len(set(names)) == len(node.args) >= 2
    return names if whole else ()


def _operation(name: str, a: Expr, b: Expr, text: str) -> Expr:
    """The operation, computed when both sides are constants."""
    if b == 0 and name in ("//", "%", "ceildiv"):
        raise Mistake(f"'{text}' divides by zero", "a divisor other than 0", "correct the divisor")
    if isinstance(a, int) and isinstance(b, int):
        return _small(_FOLD[name](a, b), text)
    if (name in ("+", "-") and b == 0) or (name in ("*", "//") and b == 1):
        return a
    return b if (name, a) in (("+", 0), ("*", 1)) else (name, a, b)


def _small(value: int, text: str) -> int:
    if not -(2**31) <= value < 2**31:
        raise Mistake(f"constant {value} in '{text}'", "one of 32 bits", "use a smaller one")
    return value


def _condition(node: ast.expr, text: str) -> Expr:
    if isinstance(node, ast.BoolOp):
        name = "and" if isinstance(node.op, ast.And) else "or"
        return _joined(name, [_condition(value, text) for value in node.values])
    if isinstance(node, ast.Compare) and (comparison := _text_comparison(node)):
        return comparison
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISON for op in node.ops):
        sides = [_arithmetic(side, text) for side in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides[:-1], sides[1:], strict=True)
        return _joined("and", [_comparison(_COMPARISON[type(op)], a, b) for op, a, b in pairs])
    raise Mistake(
        f"condition '{text}'",
        "comparisons (== != < <= > >=; of texts == != in) joined by and, or",
        "write it like 'H % G == 0'",
    )


def _comparison(name: str, a: Expr, b: Expr) -> Expr:
    return ({">": "<", ">=": "<="}[name], b, a) if name in (">", ">=") else (name, a, b)


def _joined(name: str, parts: list[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        result = (name, result, part)
    return result


def letters(expr: Expr) -> Iterator[str]:
    """Letters and arguments in an expression, groups of rank() and numel() not among them."""
    if isinstance(expr, str):
        yield expr
    elif isinstance(expr, tuple) and expr[0] not in ("rank", "numel", "text"):
        for part in expr[1:]:
            yield from letters(part)


def texts(expr: Expr) -> Iterator[tuple[str, str]]:
    """("mode", "sum") of each comparison with a text, ("dtype(x)", "int8") of each with a dtype."""
    if isinstance(expr, tuple) and expr[0] == "text":
        yield expr[1], expr[2]
    elif isinstance(expr, tuple) and expr[0] not in ("rank", "numel"):
        for part in expr[1:]:
            yield from texts(part)


def refuse_texts(expr: Expr, where: str) -> None:
    """Where only sizes count."""
    for name, value in texts(expr):
        raise Mistake(
            f"{name} == '{value}' in {where}", "integers and sizes", "leave the comparison out"
        )


def groups(expr: Expr) -> Iterator[str | tuple[str, ...]]:
    """Groups, and broadcasts of them, that rank() and numel() in an expression name."""
    if isinstance(expr, tuple):
        if expr[0] in ("rank", "numel"):
            yield expr[1]
        elif expr[0] != "text":
            for part in expr[1:]:
                yield from groups(part)


def linear(expr: Expr) -> tuple[str, int, int] | None:
    """(letter, a, b) of `a*letter + b` with constants and a > 0, to be solved for the letter."""
    if isinstance(expr, str):
        return expr, 1, 0
    if not isinstance(expr, tuple) or len(expr) != 3:
        return None
    name, left, right = expr
    if isinstance(left, int) and name in ("+", "*"):
        left, right = right, left
    inner = linear(left)
    if inner is None or not isinstance(right, int):
        return None
    letter, a, b = inner
    if name == "*" and right > 0:
        a, b = a * right, b * right
    elif name in ("+", "-"):
        b = b + right if name == "+" else b - right
    else:
        return None
    return (letter, a, b) if max(a, abs(b)) < 2**31 else None
