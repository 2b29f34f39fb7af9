# SPDX-License-Identifier: Apache-2.0
"""Shapes and expressions as the words of AnyopOp::code, see anyop/table.h."""

from __future__ import annotations

from ..schema.binding import Binding
from ..schema.expressions import Expr, linear
from ..schema.shapes import Shape
from ..schema.source import Mistake

# AnyopOpcode.
END, CONST, SYMBOL, RANK, NUMEL, TEXT_IS = 0, 1, 2, 3, 4, 19
OPCODES = {
    "+": 5, "-": 6, "*": 7, "//": 8, "ceildiv": 9, "%": 10, "min": 11, "max": 12, "==": 13,
    "!=": 14, "<": 15, "<=": 16, "and": 17, "or": 18,
}  # fmt: skip
FIRST_EXPRESSION = 64  # terms below are symbols
_MAX_STACK = 16


class Code:
    """The words of shape programs, expressions and joins; equal ones are stored once."""

    def __init__(self, binding: Binding, params: list[str]) -> None:
        self.binding = binding
        self.params = params
        self.words: list[int] = []
        self.known: dict[tuple[int, ...], int] = {}

    def put(self, words: list[int]) -> int:
        """Stores words and returns where they are."""
        key = tuple(words)
        if key not in self.known:
            self.known[key] = len(self.words)
            self.words += words
        return self.known[key]

    def expression(self, expr: Expr) -> int:
        """Stores an expression as postfix."""
        if (depth := stack_depth(expr)) > _MAX_STACK:
            raise Mistake(
                f"an expression that needs {depth} values at once",
                f"at most {_MAX_STACK}",
                "write it with fewer brackets",
            )
        return self.put([*self._postfix(expr), END])

    def _postfix(self, expr: Expr) -> list[int]:
        if isinstance(expr, int):
            return [CONST, expr]
        if isinstance(expr, str):
            return [SYMBOL, self.binding.symbols.index(expr)]
        if expr[0] == "text":
            return self._text_is(expr[1], expr[2].encode())
        if expr[0] in ("rank", "numel"):
            return [RANK if expr[0] == "rank" else NUMEL, self.binding.groups.index(expr[1])]
        return [*self._postfix(expr[1]), *self._postfix(expr[2]), OPCODES[expr[0]]]

    def _text_is(self, name: str, text: bytes) -> list[int]:
        """The parameter, the number of bytes, and the bytes, four a word, the first in its low end."""
        param = self.params.index(name.removeprefix("dtype(").rstrip(")"))
        parts = [text[at : at + 4] for at in range(0, len(text), 4)]
        words = [int.from_bytes(part.ljust(4, b"\0"), "little", signed=True) for part in parts]
        return [TEXT_IS, param, len(text), *words]

    def shape(self, shape: Shape) -> int:
        """Stores a shape program: before, after, group, mode, terms."""
        terms = [self._term(term) for term in shape.terms]
        return self.put(
            [
                len(shape.before),
                len(shape.after),
                self._group(shape.group),
                int(shape.expand),
                *terms,
            ]
        )

    def _group(self, group: str | tuple[str, ...] | None) -> int:
        if group is None:
            return -1
        if isinstance(group, str):
            return self.binding.groups.index(group)
        at = next(i for i, join in enumerate(self.binding.joins) if set(join) == set(group))
        return len(self.binding.groups) + at

    def _term(self, term: Expr) -> int:
        """A symbol, a record that is solved for a size, or an expression."""
        solved = linear(term)
        if solved and solved[1:] == (1, 0):
            return self.binding.symbols.index(solved[0])
        if solved and solved[0] in self.binding.sizes:
            return ~self.put([self.binding.symbols.index(solved[0]), *solved[1:]])
        return FIRST_EXPRESSION + self.expression(term)

    def joins(self) -> list[int]:
        """Stores {count, group, group, ...} of every broadcast."""
        index = self.binding.groups.index
        return [self.put([len(join), *map(index, join)]) for join in self.binding.joins]


def stack_depth(expr: Expr) -> int:
    """Values that the evaluation holds at once."""
    if not isinstance(expr, tuple) or expr[0] in ("rank", "numel", "text"):
        return 1
    return max(stack_depth(expr[1]), 1 + stack_depth(expr[2]))
