# SPDX-License-Identifier: Apache-2.0
"""Sizes of which some are not known before the graph runs: such a size fits everything until another one says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anyop.adapter.shapes import Expression, Shape, Size, Sizes


class _Unknown:
    """A size without a value: whatever is computed from it has none, and every comparison holds."""

    def _stay(self, *_: Any) -> _Unknown:
        return self

    def _hold(self, *_: Any) -> bool:
        return True

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _stay
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _stay
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _hold

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "?"


UNKNOWN = _Unknown()


def _extreme(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: UNKNOWN if a is UNKNOWN or b is UNKNOWN else choose(a, b)


class PartlyKnownSizes(Sizes):
    """A letter or group that was bound to an unknown size takes the first known one that it meets."""

    operations = {  # noqa: RUF012
        **Sizes.operations,
        "min": _extreme(min),
        "max": _extreme(max),
    }

    @staticmethod
    def joined(sizes: Sequence[Size]) -> Size:
        """A known size other than 1 decides; beside an unknown one, 1 decides nothing."""
        known = Sizes.joined([size for size in sizes if size is not UNKNOWN])
        return UNKNOWN if known == 1 and any(size is UNKNOWN for size in sizes) else known

    def match(self, shape: Mapping[str, Any], found: Shape, message: Callable[[], str]) -> None:
        """Bind what is new, compare what is known."""
        super().match(shape, found, message)
        group = shape["group"]
        if isinstance(group, str) and not shape["expand"]:
            first = len(shape["before"])
            known = self.groups[group]
            pairs = zip(known, found[first : first + len(known)])
            self.groups[group] = tuple(b if a is UNKNOWN else a for a, b in pairs)

    def _match_term(self, term: Expression, size: Size, message: Callable[[], str]) -> None:
        if isinstance(term, str) and self.values.get(term) is UNKNOWN:
            self.values[term] = size
            return
        super()._match_term(term, size, message)
