# SPDX-License-Identifier: Apache-2.0
"""The shape language in Python: binds letters and groups, computes shapes. Sizes may be symbolic.

An adapter whose framework has symbolic sizes subclasses Sizes: it says what a comparison without a value becomes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

Size = Any  # int, or the framework's symbolic integer
Shape = Sequence[Size]
Expression = int | str | list


def _ceildiv(a: Size, b: Size) -> Size:
    return -(-a // b)


class Unbound(Exception):
    """An expression has no value: a letter is not bound, a division is by zero, or int64 overflows."""


class Sizes:
    """Letters, integer arguments and groups of one call."""

    operations: ClassVar[dict[str, Callable[[Any, Any], Any]]] = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "//": operator.floordiv,
        "%": operator.mod,
        "ceildiv": _ceildiv,
        "min": min,
        "max": max,
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        "and": operator.and_,
        "or": operator.or_,
    }

    @staticmethod
    def require(truth: Any, message: Callable[[], str]) -> None:
        """Raise ValueError where truth is false."""
        if not truth:
            raise ValueError(message())

    def broadcast(self, shapes: Sequence[Shape]) -> Shape:
        """The shape that all of these broadcast to; ValueError when there is none."""
        rank = max(map(len, shapes), default=0)
        return tuple(
            self.joined([shape[place] for shape in shapes if -place <= len(shape)])
            for place in range(-rank, 0)
        )

    @staticmethod
    def joined(sizes: Sequence[Size]) -> Size:
        """The one size that these broadcast to."""
        others = [size for size in sizes if not (isinstance(size, int) and size == 1)]
        if any(size != others[0] for size in others):
            raise ValueError("shapes cannot be broadcast together")
        return others[0] if others else 1

    def __init__(self, values: dict[str, Size] | None = None, order: Sequence[str] = ()) -> None:
        self._order = order  # of letters and arguments in messages
        self.values: dict[str, Size] = dict(values or {})
        self.groups: dict[str, tuple[Size, ...]] = {}
        self.texts: dict[str, str] = {}  # of "mode", "dtype(x)"
        self._joined: list[tuple[Sequence[str], tuple[Size, ...]]] = []

    def evaluate(self, expression: Expression) -> Any:
        """The value of an expression; a comparison's is a truth, which may be symbolic."""
        if isinstance(expression, int):
            return expression
        if isinstance(expression, str):
            if expression not in self.values:
                raise Unbound
            return self.values[expression]
        name, *operands = expression
        if name == "text":
            return int(self.texts[operands[0]] == operands[1])
        if name in ("rank", "numel"):
            group = self.group(operands[0])
            return len(group) if name == "rank" else math.prod(group)
        a, b = (self.evaluate(operand) for operand in operands)
        if name in ("//", "%", "ceildiv") and isinstance(b, int) and b == 0:
            raise Unbound
        value = self.operations[name](a, b)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise Unbound
        return value

    def group(self, group: str | Sequence[str] | None) -> tuple[Size, ...]:
        """The sizes of a group, or those that several broadcast to (absent ones left out)."""
        if group is None:
            return ()
        if isinstance(group, str):
            if group not in self.groups:
                raise Unbound
            return self.groups[group]
        known = [self.groups[name] for name in group if name in self.groups]
        return tuple(self.broadcast(known))

    def shape(self, shape: Mapping[str, Any]) -> tuple[Size, ...]:
        """The sizes of a tensor (of a list: of an element)."""
        before, after = ([self.evaluate(t) for t in shape[part]] for part in ("before", "after"))
        found = (*before, *self.group(shape["group"]), *after)
        if any(isinstance(size, int) and size < 0 for size in found):
            raise Unbound
        return found

    def match(self, shape: Mapping[str, Any], found: Shape, message: Callable[[], str]) -> None:
        """Bind what is new, compare what is known. ValueError with the message where it does not fit."""
        if shape["expand"]:
            self._match_expanded(shape, found, message)
            return
        before, group, after = shape["before"], shape["group"], shape["after"]
        rank = len(found) - len(before) - len(after)
        self.require(rank >= 0 and (group is not None or rank == 0), message)
        for term, size in zip(before, found):
            self._match_term(term, size, message)
        if group is not None:
            middle = tuple(found[len(before) : len(before) + rank])
            if not isinstance(group, str):  # a broadcast: its groups may be bound later
                self._joined.append((group, middle))
            elif group in self.groups:
                self._require_same(self.groups[group], middle, message)
            else:
                self.groups[group] = middle
        for term, size in zip(after, found[len(before) + rank :]):
            self._match_term(term, size, message)

    def match_joined(self, message: Callable[[], str]) -> None:
        """Compare arguments whose shape is a broadcast of groups, once all groups are bound."""
        for group, found in self._joined:
            self._require_same(self.group(group), found, message)
        self._joined.clear()

    def _match_expanded(self, shape, found: Shape, message: Callable[[], str]) -> None:
        full = self._value(self.shape, shape, message)
        self.require(len(found) <= len(full), message)
        for a, b in zip(reversed(found), reversed(full)):
            if not (isinstance(a, int) and a == 1):
                self.require(self.operations["or"](a == b, a == 1), message)

    def _match_term(self, term: Expression, size: Size, message: Callable[[], str]) -> None:
        unknown = {letter for letter in letters(term) if letter not in self.values}
        if not unknown:
            self.require(self._value(self.evaluate, term, message) == size, message)
            return
        (letter,) = unknown  # a * letter + b, with a > 0
        at_0, at_1 = (type(self)({**self.values, letter: n}).evaluate(term) for n in (0, 1))
        rest, factor = size - at_0, at_1 - at_0
        if at_0 != 0:
            self.require(rest >= 0, message)
        if factor != 1:
            self.require(rest % factor == 0, message)
        self.values[letter] = rest // factor if factor != 1 else rest

    def _require_same(self, known: Shape, found: Shape, message: Callable[[], str]) -> None:
        self.require(len(known) == len(found), message)
        for a, b in zip(known, found):
            self.require(a == b, message)

    @staticmethod
    def _value(compute: Callable[[Any], Any], what: Any, message: Callable[[], str]) -> Any:
        try:
            return compute(what)
        except Unbound:
            raise ValueError(message()) from None

    def known_text(self, *terms: Expression) -> str:
        """What is known of the letters in terms, as in: with D=64, k=3."""
        names = {letter for term in terms for letter in letters(term)} & set(self.values)
        known = [f"{name}={self.values[name]}" for name in self._order if name in names]
        compared = {name for term in terms for name in compared_texts(term)}
        known += [_text_shown(name, text) for name, text in self.texts.items() if name in compared]
        return " with " + ", ".join(known) if known else ""


def letters(expression: Expression) -> Iterator[str]:
    """Letters and integer arguments in an expression."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, (list, tuple)) and expression[0] not in ("rank", "numel", "text"):
        for part in expression[1:]:
            yield from letters(part)


def compared_texts(expression: Expression) -> Iterator[str]:
    """What an expression compares with texts: "mode", "dtype(x)"."""
    if isinstance(expression, (list, tuple)) and expression[0] == "text":
        yield expression[1]
    elif isinstance(expression, (list, tuple)) and expression[0] not in ("rank", "numel"):
        for part in expression[1:]:
            yield from compared_texts(part)


def asks_for_texts_alone(expression: Expression) -> bool:
    """Whether an expression has arguments that are texts, and neither dtypes nor sizes."""
    compared = list(compared_texts(expression))
    sized = any(letters(expression)) or any(counted_groups(expression))
    return bool(compared) and not sized and not any(n.startswith("dtype(") for n in compared)


def _text_shown(name: str, text: str) -> str:
    """As the core's messages have it: a long text is not shown."""
    if name.startswith("dtype("):
        return f"{name}={text}"
    size = len(text.encode(errors="surrogatepass"))
    return f"{name} of {size} bytes" if size > 40 else f"{name}='{text}'"


def counted_groups(expression: Expression) -> Iterator[str]:
    """Groups that rank() and numel() in an expression name."""
    if isinstance(expression, (list, tuple)):
        if expression[0] in ("rank", "numel"):
            yield from [expression[1]] if isinstance(expression[1], str) else expression[1]
        elif expression[0] != "text":
            for part in expression[1:]:
                yield from counted_groups(part)


def sizes_text(shape: Shape) -> str:
    """A shape as messages write it: (2, 3), (63)."""
    return "(" + ", ".join(map(str, shape)) + ")"
