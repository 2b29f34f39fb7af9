# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives: evaluates the formulas of [tangent] with the calls of a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

Call = Callable[[str, list[Any], dict[str, Any]], Any]  # (operator, arguments, named) -> results
Fill = Callable[[Any, Any, float], Any]  # (tensor, shape or None: its own, number) -> tensor


class Tangent:
    """The formulas of one operator."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        prefix = "" if metadata["namespace"] == "anyop" else metadata["namespace"] + "."
        self.name = prefix + metadata["name"]  # as errors say it
        self._stated: dict[str, list[Any]] = metadata.get("tangent") or {}
        results = metadata["results"]
        self.result = results[0]["name"] if results else None

    @cached_property
    def formulas(self) -> dict[str, list[Any]]:
        """By input."""
        return {name: _shared(tree, {}) for name, tree in self._stated.items()}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs whose tangents are pushed forward."""
        return tuple(self.formulas)

    @property
    def names(self) -> frozenset[str]:
        """Inputs, and the result, whose values or shapes the formulas need."""
        found: set[str] = set()
        for name, tree in self.formulas.items():
            _collect(tree, found)
            found.discard(f"tangent_{name}")
        return frozenset(_marked(name)[1] for name in found)

    def check(self, names: Mapping[str, Any]) -> None:
        """NotImplementedError for a tangent of an input without a formula."""
        for name in names:
            if name not in self.formulas:
                raise NotImplementedError(
                    f"{self.name}: has no derivative in forward mode with respect to {name} "
                    "(jvp, jacfwd, hessian); use reverse mode (vjp, jacrev)"
                )

    def push(
        self,
        values: Mapping[str, Any],
        tangents: Mapping[str, Any],
        call: Call,
        fill: Fill,
        dtype: Any = None,
    ) -> Any:
        """The tangent of the result, of this dtype, which is the result's; None where it is zero.

        values has all inputs and the result by name; tangents those of inputs that have one. call runs an operator
        by its name; fill(tensor, shape, number) makes a tensor of that tensor's dtype and device.
        """
        self.check(tangents)
        total = None
        for name, tangent in tangents.items():
            here = _Formula(name, values, tangent, call, fill)
            found = here.evaluate(self.formulas[name])
            if found is not None:
                total = found if total is None else call("add", [total, found], {})
        if (
            dtype is not None and total is not None and total.dtype != dtype
        ):  # as where weight has another one than x
            total = call("cast", [total, dtype], {})
        return total


class _Formula:
    """One formula at the point of one call."""

    def __init__(
        self, name: str, values: Mapping[str, Any], tangent: Any, call: Call, fill: Fill
    ) -> None:
        self.known = {**values, f"tangent_{name}": tangent}
        self.tangent, self.call, self.fill = tangent, call, fill
        self.done: dict[int, Any] = {}  # by the call's id: its value

    def evaluate(self, tree: list[Any]) -> Any:
        """None for the formula 0."""
        return None if tree[0] == "value" else self._value(tree)

    def _value(self, tree: list[Any]) -> Any:
        kind = tree[0]
        if kind == "value":
            return tree[1]
        if kind == "name":
            return self._named(tree[1])
        if kind == "or":
            found = self._value(tree[1])
            return self.fill(self.tangent, (), tree[2]) if found is None else found
        if kind != "call":
            raise ValueError(f"a formula with '{kind}', which this anyop does not know")
        if id(tree) not in self.done:
            self.done[id(tree)] = self._called(tree)
        return self.done[id(tree)]

    def _called(self, tree: list[Any]) -> Any:
        args = [self._value(arg) for arg in tree[2]]
        found = self.call(tree[1], args, {name: self._value(arg) for name, arg in tree[3].items()})
        if isinstance(found, (tuple, list)):
            return next(value for value in found if value is not None)
        return found

    def _named(self, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        number, source = _marked(name)
        value = self.known[source]
        return None if value is None or number is None else self.fill(value, None, number)


def _shared(tree: list[Any], seen: dict[str, list[Any]]) -> list[Any]:
    """The tree with equal calls as one object: each is made once."""
    if tree[0] != "call":
        return tree
    args = [_shared(arg, seen) for arg in tree[2]]
    named = {name: _shared(arg, seen) for name, arg in tree[3].items()}
    return seen.setdefault(repr(tree), ["call", tree[1], args, named])


def _marked(name: str) -> tuple[float | None, str]:
    """(number, parameter) of zeros_<parameter> and ones_<parameter>."""
    for mark, number in (("zeros_", 0), ("ones_", 1)):
        if name.startswith(mark):
            return number, name[len(mark) :]
    return None, name


def _collect(tree: list[Any], found: set[str]) -> None:
    if tree[0] == "name":
        found.add(tree[1])
    elif tree[0] == "or":
        _collect(tree[1], found)
    elif tree[0] == "call":
        for arg in (*tree[2], *tree[3].values()):
            _collect(arg, found)
