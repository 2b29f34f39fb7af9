# SPDX-License-Identifier: Apache-2.0
"""The rules of [dtypes], read: what element type a tensor may have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .dtypes import DTYPES
from .source import Mistake, listed, nearest


@dataclass(frozen=True)
class DtypeRule:
    """What element type a tensor may have. Exactly one of the five ways is in use."""

    names: tuple[str, ...] = ()  # one of these,
    same_as: str | None = None  # or that of this parameter; both together: either
    promote: tuple[str, ...] | None = None  # torch's promotion of two parameters,
    with_dtype: str | None = None  # or of one with this dtype
    attribute: str | None = None  # the value of this ScalarType parameter,
    otherwise: str | None = None  # where that is None the dtype of this one
    first_given: tuple[str, str] | None = None  # that of this optional tensor, else of the second

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the tensors that the rule looks at."""
        second = self.first_given and self.first_given[1]
        return tuple(p for p in (self.same_as, *(self.promote or ()), self.otherwise, second) if p)

    @property
    def mask(self) -> int:
        """The names as a bit set of AnyopDtype."""
        names = (self.with_dtype,) if self.with_dtype else self.names
        return sum(1 << DTYPES.index(name) for name in names)


def parse_rule(value: object, parameters: Sequence[str], attributes: Sequence[str]) -> DtypeRule:
    """Reads one entry of [dtypes]; `attributes` are the ScalarType parameters."""
    if isinstance(value, list):
        return _parse_list(value, parameters)
    if not isinstance(value, str):
        raise Mistake(
            f"{value!r}",
            'a list of dtypes, or text such as "x" or "promote(x, y)"',
            "write a list of names or a rule",
        )
    if match := re.fullmatch(r"\s*promote\(\s*(\w+)\s*,\s*(\w+)\s*\)\s*", value):
        if match[2] in DTYPES and match[2] not in parameters:
            return DtypeRule(promote=(match[1],), with_dtype=match[2])
        return DtypeRule(promote=(match[1], match[2]))
    if match := re.fullmatch(r"\s*(\w+)\s+or\s+(\w+)\s*", value):
        if match[1] in parameters:
            return DtypeRule(first_given=(match[1], match[2]))
        return DtypeRule(attribute=match[1], otherwise=match[2])
    if value in attributes:
        return DtypeRule(attribute=value)
    return _parse_list([value], parameters)


def _parse_list(value: list, parameters: Sequence[str]) -> DtypeRule:
    if not value or not all(isinstance(name, str) for name in value):
        raise Mistake(
            f"{value!r}",
            "a list of at least one dtype name",
            "name the dtypes that the kernels compute",
        )
    if len(set(value)) < len(value):
        raise Mistake("a dtype is listed twice", "each one once", "remove one")
    same = [name for name in value if name in parameters]
    if len(same) > 1:
        raise Mistake(
            f"two arguments {listed(same, 'and')} in one list",
            "one argument at most",
            "use promote(x, y), or name one",
        )
    known = [*DTYPES, *parameters]
    for name in value:
        if name not in known:
            raise Mistake(
                f"'{name}' is neither a dtype nor an argument",
                "either",
                nearest(name, known, f"dtypes are {listed(DTYPES)}"),
            )
    names = tuple(name for name in value if name not in parameters)
    return DtypeRule(names=names, same_as=same[0] if same else None)
