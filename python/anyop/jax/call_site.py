# SPDX-License-Identifier: Apache-2.0
"""One call site: an operator with everything but its arrays. JAX compares sites to find what it has compiled.

Arrays are handed around flat: those of lists one after the other, absent ones left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from anyop.adapter.operators import Operator

Presence = (
    bool | str
)  # of a tensor argument: given or not; of a list one digit an element, 0 where it is None


class Site:
    """Equal sites are equal calls, to the last bit of every number."""

    def __init__(
        self,
        operator: Operator,
        inputs: Sequence[Any],
        wanted: tuple[bool, ...] | None = None,
        use: str | None = None,
    ) -> None:
        self.operator = self.called = operator  # called: whom errors name
        self.use = use  # the text of its scope (anyop.use)
        self.attributes = tuple(
            None if at in operator.tensors else _frozen(param, value)
            for at, (param, value) in enumerate(zip(operator.inputs, inputs))
        )
        self.presence: tuple[Presence, ...] = tuple(
            _presence(inputs[at]) for at in operator.tensors
        )
        self.wanted = wanted or (True,) * len(operator.results)
        texts = tuple(map(_exact, self.attributes))
        self._key: tuple[Any, ...] = (operator.name, texts, self.presence, self.wanted, use)
        self._hash = hash(self._key)
        self._is_single = self.wanted == (True,) and not operator.mutated

    def of(self, operator: Operator) -> Site:
        """The same call of another operator that has the same inputs, for all of its results."""
        other = copy(self)
        other.operator, other.wanted = operator, (True,) * len(operator.results)
        other._key = (operator.name, *self._key[1:3], other.wanted, self.use, self.called.name)
        other._hash, other._is_single = hash(other._key), other.wanted == (True,)
        return other

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and self._key == other._key

    def __repr__(self) -> str:
        given = [
            f"{param['name']}={value!r}"
            for param, value in zip(self.operator.inputs, self.attributes)
            if param["kind"] != "Tensor"
        ]
        if self.use is not None:
            given.append(f"use={self.use!r}")
        return f"{self.operator.name}({', '.join(given)})"

    # ---- arrays ----

    def flatten(self, inputs: Sequence[Any]) -> list[Any]:
        """The arrays among the inputs."""
        flat = []
        for at in self.operator.tensors:
            value = inputs[at]
            if isinstance(value, (list, tuple)):
                flat.extend(item for item in value if item is not None)
            elif value is not None:
                flat.append(value)
        return flat

    def inputs(self, flat: Sequence[Any]) -> list[Any]:
        """All inputs of the operator, with these arrays."""
        arrays, inputs = iter(flat), list(self.attributes)
        for at, presence in zip(self.operator.tensors, self.presence):
            if isinstance(presence, str):
                inputs[at] = [None if digit == "0" else next(arrays) for digit in presence]
            else:
                inputs[at] = next(arrays) if presence else None
        return inputs

    def owners(self) -> list[int]:
        """Of each flat array, the input it belongs to."""
        return [
            at
            for at, presence in zip(self.operator.tensors, self.presence)
            for _ in range(_count(presence))
        ]

    def changed(self) -> dict[int, int]:
        """Of each flat array that the operator changes, the flat result that is its new value."""
        first = sum(self.wanted)
        arrays = [place for place, at in enumerate(self.owners()) if at in self.operator.mutated]
        return {place: first + number for number, place in enumerate(arrays)}

    def results(self, flat: Sequence[Any]) -> Any:
        """What the caller gets: results, None where one is not wanted, then the new values of changed arguments."""
        if self._is_single:
            return flat[0]
        arrays = iter(flat)
        found: list[Any] = [next(arrays) if wanted else None for wanted in self.wanted]
        for at, presence in zip(self.operator.tensors, self.presence):
            if at not in self.operator.mutated:
                continue
            if isinstance(presence, str):
                found.append([None if digit == "0" else next(arrays) for digit in presence])
            else:
                found.append(next(arrays) if presence else None)
        return found[0] if len(found) == 1 else tuple(found) if found else None

    # ---- XLA ----

    def xla_attributes(self) -> dict[str, Any]:
        """As bindings/jax/xla_entry.h has it."""
        found = {"_call": self._call_text()}
        for param, value in zip(self.operator.inputs, self.attributes):
            if param["kind"] != "Tensor":
                found[param["name"]] = _attribute(param["kind"], value)
        return found

    def _call_text(self) -> str:
        operator = self.operator
        given: dict[int, str | list[str]] = {}
        for at, presence in zip(operator.tensors, self.presence):
            if presence is not False:
                name = operator.names[at]
                given[at] = [name, presence] if isinstance(presence, str) else name
        changed = [tensor for at, tensor in given.items() if at in operator.mutated]
        results = [p["name"] for p, wanted in zip(operator.results, self.wanted) if wanted]
        site = {
            "operator": f"{operator.namespace}.{operator.short}",
            "arguments": list(given.values()),
            "results": [*results, *changed],
        }
        if self.called is not operator:
            site["called"] = self.called.name
        if self.use is not None:
            site["use"] = self.use
        return json.dumps(site, separators=(",", ":"))


def _presence(value: Any) -> Presence:
    if isinstance(value, (list, tuple)):
        return "".join("0" if item is None else "1" for item in value)
    return value is not None


def _count(presence: Presence) -> int:
    return presence.count("1") if isinstance(presence, str) else int(presence)


def _frozen(param: dict[str, Any], value: Any) -> Any:
    """An attribute in its one form: a float argument is a float, also where an int was given."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(param, item) for item in value)
    return float(value) if param["kind"] == "float" and value is not None else value


def _exact(value: Any) -> Any:
    """What differs where a call would: 0.0 and -0.0 do, two NaN do not."""
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    return value.hex() if isinstance(value, float) else value


class _Double(np.float64):
    """JAX compares attributes by ==, and would take what it lowered for 0.0 where -0.0 is asked for."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Double) and self.hex() == other.hex()

    def __hash__(self) -> int:
        return hash(self.hex())


_NUMBERS = {"int": np.int64, "float": _Double, "bool": np.bool_}


def _attribute(kind: str, value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, tuple):
        if not value:
            return np.zeros(0, np.int64)
        if kind not in _NUMBERS:
            return "".join(item + "\0" for item in value)
        return np.array(value, np.float64 if kind == "float" else np.int64)
    return value + "\0" if kind not in _NUMBERS else _NUMBERS[kind](value)
