# SPDX-License-Identifier: Apache-2.0
"""The shape language in Python: values of expressions, shapes of tensors, an oracle for shapes to be refused.

Written from docs/operators.md alone, so that the tests do not repeat a mistake of the core.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]
Expression = int | str | list

_INT64 = range(-(2**63), 2**63)
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "ceildiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
}


class Misfit(Exception):
    """Shapes or integers that a schema forbids."""


@dataclass
class Sizes:
    """Values of letters and integer arguments, sizes of groups; elements: those of each tensor of the lists [N]."""

    values: dict[str, int] = field(default_factory=dict)
    groups: dict[str, Shape] = field(default_factory=dict)
    elements: dict[str, list[Sizes]] = field(default_factory=dict)
    texts: dict[str, str | None] = field(default_factory=dict)  # of "mode", "dtype(x)"

    def of_element(self, length: str, index: int) -> Sizes:
        """What holds for the tensor at index of a list of that length."""
        element = self.elements.get(length, [])[index]
        return Sizes(
            {**self.values, **element.values},
            {**self.groups, **element.groups},
            self.elements,
            self.texts,
        )


def evaluate(expression: Expression, sizes: Sizes) -> int:
    """The value of an expression; a comparison's is 0 or 1. Misfit where int64 has none."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        if expression not in sizes.values:
            raise Misfit(f"{expression} is not bound")
        return sizes.values[expression]
    name, *operands = expression
    if name == "text":
        return int(sizes.texts[operands[0]] == operands[1])
    if name == "rank":
        return len(sizes.groups[operands[0]])
    if name == "numel":
        groups = operands[0] if isinstance(operands[0], list) else operands  # a broadcast, or one
        return _checked(product(broadcast(*(sizes.groups[group] for group in groups))))
    a, b = (evaluate(operand, sizes) for operand in operands)
    if name in ("//", "%", "ceildiv") and b == 0:
        raise Misfit("division by zero")
    return _checked(int(_OPERATIONS[name](a, b)))


def _checked(value: int) -> int:
    if value not in _INT64:
        raise Misfit("overflow of 64 bits")
    return value


def product(shape: Shape) -> int:
    """The number of elements."""
    return functools.reduce(operator.mul, shape, 1)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all of them broadcast to; Misfit when there is none."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for at, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[at] not in (1, size):
                raise Misfit(f"{shapes} cannot be broadcast together")
            result[at] = size if size != 1 else result[at]
    return tuple(result)


def shape_of(shape: Mapping[str, Any], sizes: Sizes) -> Shape:
    """The sizes of a tensor (of an element, for a list)."""
    group = shape["group"]
    if group is None:
        middle: Shape = ()
    elif isinstance(group, str):
        middle = sizes.groups[group]
    else:
        middle = broadcast(*(sizes.groups[name] for name in group if name in sizes.groups))
    before, after = (
        tuple(evaluate(term, sizes) for term in shape[part]) for part in ("before", "after")
    )
    if min((*before, *after), default=0) < 0:
        raise Misfit(f"a negative size in {shape['text']}")
    return (*before, *middle, *after)


def letters_in(expression: Expression) -> Iterator[str]:
    """Letters and integer arguments in an expression."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, list) and expression[0] not in ("rank", "numel", "text"):
        for part in expression[1:]:
            yield from letters_in(part)


def texts_in(expression: Expression) -> list[str]:
    """What an expression compares with texts: "mode", "dtype(x)"."""
    if not isinstance(expression, list) or expression[0] in ("rank", "numel"):
        return []
    if expression[0] == "text":
        return [expression[1]]
    return [name for part in expression[1:] for name in texts_in(part)]


def counted_in(expression: Expression) -> list[str]:
    """The groups that rank() and numel() in an expression name."""
    if not isinstance(expression, list) or expression[0] == "text":
        return []
    if expression[0] in ("rank", "numel"):
        return [expression[1]] if isinstance(expression[1], str) else list(expression[1])
    return [name for part in expression[1:] for name in counted_in(part)]


def match(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, Any],
    integers: Mapping[str, int],
    texts: Mapping[str, str | None] | None = None,
) -> Sizes:
    """Binds the shapes of given tensors (of a list: a list of shapes) as a call must; Misfit when it must refuse.

    integers: those arguments that sizes name; texts: those, and dtypes ("dtype(x)"), that conditions compare.
    """
    sizes = Sizes(dict(integers), texts=dict(texts or {}))
    tensors = [
        param
        for param in metadata["inputs"]
        if param["kind"] == "Tensor" and shapes.get(param["name"]) is not None
    ]
    for param in tensors:
        if not param["list"]:
            _bind(param["shape"], shapes[param["name"]], sizes)
    _bind_lists(metadata, [param for param in tensors if param["list"]], shapes, sizes)
    for join in metadata["symbols"]["joins"]:
        broadcast(*(sizes.groups[name] for name in join if name in sizes.groups))
    for param in tensors:
        if isinstance(param["shape"]["group"], list):
            found, full = tuple(shapes[param["name"]]), shape_of(param["shape"], sizes)
            if found != full:
                raise Misfit(f"{found} is not {full}")
    for condition in metadata["conditions"]:
        if not evaluate(condition["expression"], sizes):
            raise Misfit(f"not {condition['text']}")
    return sizes


def _bind_lists(metadata, tensors, shapes, sizes: Sizes) -> None:
    symbols = metadata["symbols"]
    for param in tensors:
        _bind_term(param["shape"]["length"], len(shapes[param["name"]]), sizes)
    longest = max((len(shapes[param["name"]]) for param in tensors), default=0)
    for index in range(longest):
        for letter in symbols["element_sizes"]:
            sizes.values.pop(letter, None)
        for group in symbols["element_groups"]:
            sizes.groups.pop(group, None)
        for param in tensors:
            elements = shapes[param["name"]]
            if index < len(elements) and elements[index] is not None:
                _bind(param["shape"], elements[index], sizes)


def _bind(shape: Mapping[str, Any], found: Shape, sizes: Sizes) -> None:
    if shape["expand"]:
        full = shape_of(shape, sizes)
        if len(found) > len(full) or broadcast(found, full) != full:
            raise Misfit(f"{found} cannot be expanded to {full}")
        return
    before, group, after = shape["before"], shape["group"], shape["after"]
    rank = len(found) - len(before) - len(after)
    if rank < 0 or (group is None and rank > 0) or len(found) > 32:
        raise Misfit(f"rank of {found}")
    for term, size in zip(before, found):
        _bind_term(term, size, sizes)
    if isinstance(group, str):
        middle = found[len(before) : len(before) + rank]
        if sizes.groups.setdefault(group, middle) != middle:
            raise Misfit(f"group {group}")
    for term, size in zip(after, found[len(before) + rank :]):
        _bind_term(term, size, sizes)


def _bind_term(term: Expression, size: int, sizes: Sizes) -> None:
    unknown = {letter for letter in letters_in(term) if letter not in sizes.values}
    if len(unknown) == 1:  # a*S + b
        (letter,) = unknown
        at_0, at_1 = (
            evaluate(term, Sizes({**sizes.values, letter: value}, sizes.groups)) for value in (0, 1)
        )
        value, rest = divmod(size - at_0, at_1 - at_0)
        if rest or value < 0:
            raise Misfit(f"{size} is no {term}")
        sizes.values[letter] = value
    elif evaluate(term, sizes) != size:
        raise Misfit(f"{size} is not {term}")
