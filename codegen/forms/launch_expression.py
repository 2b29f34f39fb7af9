# SPDX-License-Identifier: Apache-2.0
"""Expressions of a Triton kernel's launch: text to nested tuples, which become C, or a number at build time.

Integers and truth values alike: an int, a name, or a tuple whose first word is one of _C, "if", or a call of _TENSORS.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from ..schema.expressions import Expr
from ..schema.source import Mistake, listed, nearest
from ..text.c_text import c_string

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARE = {
    ast.Eq: ("==", 0), ast.NotEq: ("!=", 0), ast.Lt: ("<", 0), ast.LtE: ("<=", 0),
    ast.Gt: ("<", 1), ast.GtE: ("<=", 1),
}  # fmt: skip
_C = {
    "+": "Add", "-": "Subtract", "*": "Multiply", "//": "Divide", "%": "Remainder", "ceildiv": "CeilDivide",
    "min": "Min", "max": "Max", "==": "Equal", "!=": "Different", "<": "Less", "<=": "AtMost", "and": "And",
    "or": "Or", "if": "Choose", "next_power_of_2": "NextPowerOfTwo",
}  # fmt: skip
_VALUE: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "ceildiv": lambda a, b: -(-a // b), "min": min, "max": max,
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b), "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b), "next_power_of_2": lambda a: 1 << max(a - 1, 0).bit_length(),
}  # fmt: skip
# Of a tensor -> how many expressions follow its name.
_TENSORS = {"numel": (0,), "rank": (0,), "size": (1,), "inner": (1,), "stride": (0, 1)}
_LANGUAGE = (
    "integers, names, + - * // %, ceil(a/b), min, max, next_power_of_2(a), comparisons, and, or, not, "
    "a if c else b, numel(x), rank(x), size(x, d), inner(x, d), stride(x), x is None, text == 'word'"
)


def parse_launch(text: str) -> Expr:
    """An expression."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unusable(text) from None
    return _read(tree, text)


def _unusable(text: str) -> Mistake:
    return Mistake(f"unusable expression '{text}' in launch", _LANGUAGE, "use only these")


def _read(node: ast.expr, text: str) -> Expr:
    def read(part: ast.expr) -> Expr:
        return _read(part, text)

    if isinstance(node, ast.Constant) and isinstance(node.value, int):  # or a bool
        if not -(2**31) <= node.value < 2**31:
            raise _unusable(text)
        return int(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        operand = read(node.operand)
        return ("==", operand, 0) if isinstance(node.op, ast.Not) else ("-", 0, operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)], read(node.left), read(node.right)
    if isinstance(node, ast.IfExp):
        return "if", read(node.test), read(node.body), read(node.orelse)
    if isinstance(node, ast.BoolOp):
        name, (first, *rest) = (
            "and" if isinstance(node.op, ast.And) else "or",
            map(read, node.values),
        )
        for part in rest:
            first = (name, first, part)
        return first
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison(node, text)
    if isinstance(node, ast.Call) and not node.keywords:
        return _call(node, text)
    raise _unusable(text)


def _comparison(node: ast.Compare, text: str) -> Expr:
    left, right, kind = node.left, node.comparators[0], type(node.ops[0])
    if isinstance(left, ast.Name) and isinstance(right, ast.Constant):
        if kind in (ast.Is, ast.IsNot) and right.value is None:
            return "==", ("has", left.id), int(kind is ast.IsNot)
        if kind in (ast.Eq, ast.NotEq) and isinstance(right.value, str):
            return "==", ("text", left.id, right.value), int(kind is ast.Eq)
    if kind not in _COMPARE:
        raise _unusable(text)
    name, turned = _COMPARE[kind]
    sides = [_read(left, text), _read(right, text)]
    return name, *(reversed(sides) if turned else sides)


def _call(node: ast.Call, text: str) -> Expr:
    name, arguments = node.func.id if isinstance(node.func, ast.Name) else "", node.args
    division = arguments[0] if name == "ceil" and len(arguments) == 1 else None
    if isinstance(division, ast.BinOp) and isinstance(division.op, ast.Div):
        return "ceildiv", _read(division.left, text), _read(division.right, text)
    if name in ("min", "max") and len(arguments) > 1:
        found, *rest = [_read(part, text) for part in arguments]
        for part in rest:
            found = (name, found, part)
        return found
    if name == "next_power_of_2" and len(arguments) == 1:
        return name, _read(arguments[0], text)
    first = arguments[0] if len(arguments) - 1 in _TENSORS.get(name, ()) else None
    if isinstance(first, ast.Name):
        return name, first.id, *(_read(part, text) for part in arguments[1:])
    raise _unusable(text)


def tensors(expression: Expr, *words: str) -> Iterator[tuple]:
    """The parts that ask a tensor, or another argument itself: all, or those of these words."""
    if isinstance(expression, tuple):
        own = expression[0] in (*_TENSORS, "has", "text")
        if own and (not words or expression[0] in words):
            yield expression
        for part in expression[2 if own else 1 :]:
            yield from tensors(part, *words)


def names(expression: Expr) -> Iterator[str]:
    """The names of numbers in it."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, tuple) and expression[0] != "text":
        for part in expression[2 if expression[0] in (*_TENSORS, "has") else 1 :]:
            yield from names(part)


def check_names(expression: Expr, known: Mapping[str, str], text: str) -> None:
    """Refuses a name of no number."""
    for name in names(expression):
        if name not in known:
            raise Mistake(
                f"'{name}' in '{text}' of launch",
                f"a size, a number or a name of launch ({listed(n for n in known if ' ' not in n)})",
                nearest(name, known, "use only these"),
            )


def launch_c(expression: Expr, known: Mapping[str, str]) -> str:
    """C of an int64_t. known: name -> its C."""
    if isinstance(expression, int):
        return f"INT64_C({expression})" if expression >= 0 else f"(-INT64_C({-expression}))"
    if isinstance(expression, str):
        return known[expression]
    word, *parts = expression
    if word == "has":
        return known[f"has {parts[0]}"]
    if word == "text":
        return (
            f"AnyopTritonIsText(&args->{parts[0]}, {c_string(parts[1])}, {len(parts[1].encode())})"
        )
    if word in _TENSORS:
        given = [f"args->{parts[0]}", *(launch_c(part, known) for part in parts[1:])]
        function = "Row" * (word == "stride" and len(parts) == 1) + word.title()
        return f"AnyopTriton{function}({', '.join(given)})"
    return f"AnyopSize{_C[word]}({', '.join(launch_c(part, known) for part in parts)})"


def evaluate(expression: Expr, values: Mapping[str, int]) -> int:
    """The number, of names that are known at build time. Raises KeyError with what is not."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return values[expression]
    word, *parts = expression
    if word == "has":
        return values.get(f"has {parts[0]}", 1)
    if word == "text":
        return int(values[parts[0]] == parts[1])
    if word in _TENSORS:
        raise KeyError(f"{word}({parts[0]})")
    if word in ("if", "and", "or"):  # the other part may have no value
        first = evaluate(parts[0], values)
        if word == "if":
            return evaluate(parts[1] if first else parts[2], values)
        if bool(first) == (word == "or"):
            return int(word == "or")
        return int(evaluate(parts[1], values) != 0)
    return _VALUE[word](*(evaluate(part, values) for part in parts))
