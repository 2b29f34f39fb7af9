# SPDX-License-Identifier: Apache-2.0
"""Draws sizes, groups and attributes that satisfy an operator's conditions, or break one of them."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyop.cases.sizes import (
    Misfit,
    Shape,
    Sizes,
    broadcast,
    counted_in,
    evaluate,
    letters_in,
    product,
    shape_of,
    texts_in,
)

# Around the widths of vectors (4 to 64 elements), of cache lines and of the blocks that kernels sum in.
WIDTHS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, 1031)
GROUPS: tuple[Shape, ...] = (
    (),
    (0,),
    (1,),
    (5,),
    (2, 3),
    (0, 3),
    (3, 0),
    (2, 1, 3),
    (1, 2, 1, 2, 1),
)
_JOINED: tuple[Shape, ...] = ((3,), (2, 3), (2, 1, 3), (0,), (2, 0), (1, 4), (2, 1, 2, 1, 2))
_TRIES = 400
_LARGER = 60_000  # elements that the product of all letters may come to at the larger base sizes


@dataclass
class Point:
    """One choice of all sizes and of the attributes that are given; others keep their defaults."""

    sizes: Sizes
    attributes: dict[str, Any] = field(default_factory=dict)


class Drawer:
    """Chooses points for one operator; the same ones every time."""

    def __init__(
        self, metadata: Mapping[str, Any], dtypes: Mapping[str, str | None] | None = None
    ) -> None:
        self.metadata = metadata
        self.dtypes = dtypes or {}  # of tensors, where conditions ask for them
        self.symbols = metadata["symbols"]
        self.texts = self.symbols.get("texts", [])  # older libraries have none
        self.test = metadata["test"] or {}
        self.inputs = {param["name"]: param for param in metadata["inputs"]}
        self.random = random.Random(zlib.crc32(metadata["schema"].encode()))

    # ---- what is tried ----

    def letter_values(self, letter: str) -> list:
        """Values of a letter that are tried: those of [test], else sizes around vector widths."""
        if letter in self.test.get("sizes", {}):
            return self.test["sizes"][letter]
        return list((0, 1, 2, 3) if letter in self._lengths() else WIDTHS)

    def dtype_of(self, tensor: str) -> str | None:
        """That of the case, else the first that the tensor may have."""
        if tensor in self.dtypes:
            return self.dtypes[tensor]
        return self.inputs[tensor]["possible_dtypes"][0]

    def group_values(self, group: str) -> list[Shape]:
        """Shapes of a group that are tried; where no letter has a width, the group has."""
        shapes = list(GROUPS)
        if not self.symbols["sizes"]:
            shapes += [(n,) for n in WIDTHS if n > 3] + [(3, n) for n in (7, 8, 17, 64, 65)]
        ranks = self.test.get("rank", {}).get(group)
        if ranks is None:
            return shapes
        filler = [(2, 3, 1, 2, 2, 1, 2, 1)[:rank] for rank in ranks]
        return [shape for shape in [*shapes, *filler] if len(shape) in ranks]

    def join_values(self, join: tuple[str, ...] | list[str]) -> list[dict[str, Shape]]:
        """Shapes of groups that broadcast together: every way to leave out or repeat sizes of a full shape."""
        full = list(_JOINED)
        if not self.symbols["sizes"]:
            full += [(n,) for n in WIDTHS if n > 3] + [(3, n) for n in (8, 17, 65)]
        found = []
        for shape in full:
            ways = list(itertools.product(_parts(shape), repeat=len(join)))
            if len(ways) > 40:
                ways = ways[:1] + self.random.sample(ways, 39)
            found += [dict(zip(join, way)) for way in ways]
        ranks = self.test.get("rank", {})
        fits = [
            way for way in found if all(len(s) in ranks.get(g, (len(s),)) for g, s in way.items())
        ]
        return [way for at, way in enumerate(fits) if way not in fits[:at]]

    def attribute_values(self, param: Mapping[str, Any]) -> list[Any]:
        """Values of an attribute that are tried when it is given; expressions of letters are resolved later."""
        name, kind = param["name"], param["kind"]
        listed = self.test.get("values", {}).get(name, [])
        default = [param["default"]] if param["has_default"] else []
        if name in self.symbols["attributes"]:  # conditions say which of these are good
            near = [*listed, *default, 0, 1, 2, -1, -2, *self.symbols["sizes"]]
            return [value for at, value in enumerate(near) if value not in near[:at]]
        if listed:
            return listed
        none = [None] if param["optional"] else []
        if param["list"]:
            if not default and not none:
                raise LookupError(f"[test] must list values of {name}")
            return default + [value for value in none if value not in default]
        if kind == "bool":
            return [False, True, *none]
        if kind == "int":
            return default or [1, *none]
        if kind == "float":
            halved = [value / 2 for value in default if isinstance(value, (int, float))]
            return default + halved + [value for value in none if value not in default] or [0.5]
        if not default and not none:
            raise LookupError(f"[test] must list values of {name}")
        return default + [value for value in none if value not in default]

    def _lengths(self) -> set[str]:
        shapes = [param["shape"] for param in self.inputs.values() if param["kind"] == "Tensor"]
        return {shape["length"] for shape in shapes if shape["length"]}

    # ---- base choices ----

    def base_letter(self, letter: str, large: bool = False) -> Any:
        """A value above 1, another one for each letter: mistaken letters show."""
        if letter in self._lengths():
            return 3
        at = self.symbols["sizes"].index(letter)
        if large and letter in self._larger_letters():
            return 33 + at
        if letter not in self.test.get("sizes", {}):
            return (5, 3, 4, 6, 2, 7, 8, 9)[at % 8]
        values = self.letter_values(letter)
        above = [value for value in values if not isinstance(value, int) or value > 1] or values
        return above[at % len(above)]

    def _larger_letters(self) -> set[str]:
        """The last letters, as many as keep an operator that loops over all of them quick."""
        found: set[str] = set()
        bases = [self.base_letter(letter) for letter in self.symbols["sizes"]]
        total = product(tuple(value for value in bases if isinstance(value, int)))
        for letter, base in reversed(list(zip(self.symbols["sizes"], bases))):
            free = letter not in self.test.get("sizes", {}) and letter not in self._lengths()
            if free and total * 40 // base <= _LARGER:
                found.add(letter)
                total = total * 40 // base
        return found

    def base_group(self, group: str) -> Shape:
        """(2, 3), or what [test] allows; groups of a broadcast differ in rank."""
        for join in self.symbols["joins"]:
            if group in join and join.index(group) % 2 and self._rank_allowed(group, 1):
                return (3,)
        for shape in ((2, 3), (3,), (2, 1, 3), ()):
            if self._rank_allowed(group, len(shape)):
                return shape
        return self.group_values(group)[0]

    def _rank_allowed(self, group: str, rank: int) -> bool:
        return rank in self.test.get("rank", {}).get(group, (rank,))

    # ---- points ----

    def solve(
        self,
        letters: Mapping[str, int] | None = None,
        groups: Mapping[str, Shape] | None = None,
        attributes: Mapping[str, Any] | None = None,
        breaks: int | None = None,
        large: bool = False,
        wild: bool = False,
    ) -> Point | None:
        """A point with these values that satisfies every condition (breaks the one of that number, if given).

        Letters that are not given have their base value as long as that does. None when nothing was found.
        """
        if self._is_forbidden(attributes or {}, breaks):
            return None
        # Attributes without default are drawn in any case: other ones before other sizes.
        drawn = any(not self.inputs[name]["has_default"] for name in self.symbols["attributes"])
        drawn = drawn or bool(self.texts)
        is_open = breaks is not None or self._is_open(letters, groups, attributes)
        for attempt in range(_TRIES if is_open else 1):
            loose = wild or attempt > (10 if drawn else 0)
            pinned = dict(attributes or {})
            if breaks is not None and self.symbols["attributes"] and self.random.random() < 0.5:
                name = self.random.choice(self.symbols["attributes"])
                pinned[name] = self.random.choice((-1000, -10, -1, 0, 10, 1000))
            shapes = dict(groups or {})
            if breaks is not None:
                self._pin_forbidden(breaks, pinned, shapes)
            point = self._attempt(letters or {}, shapes, pinned, large, loose)
            if point and self._holds(point, breaks):
                return point
        return None

    def _is_open(self, *given: Mapping[str, Any] | None) -> bool:
        """Whether there is anything to draw beside letters, groups and integers that are given."""
        named = {name for each in given for name in each or ()}
        symbols = (self.symbols[kind] for kind in ("sizes", "groups", "attributes"))
        return bool(self.texts) or any(name not in named for each in symbols for name in each)

    def _is_forbidden(self, attributes: Mapping[str, Any], breaks: int | None) -> bool:
        """Whether a condition that names these integers alone is broken, whatever else is drawn."""
        given = {name: v for name, v in attributes.items() if type(v) is int}
        for at, condition in enumerate(self.metadata["conditions"]):
            expression = condition["expression"]
            named = set(letters_in(expression))
            alone = named and named <= given.keys()
            if at == breaks or not alone or counted_in(expression) or texts_in(expression):
                continue
            try:
                if not evaluate(expression, Sizes(given)):
                    return True
            except Misfit:
                return True
        return False

    def _pin_forbidden(self, breaks: int, pinned: dict[str, Any], groups: dict[str, Shape]) -> None:
        """Texts that are no choice and ranks that [test] leaves out, where only they break the condition."""
        expression = self.metadata["conditions"][breaks]["expression"]
        counted, compared = counted_in(expression), texts_in(expression)
        sized = counted or any(letters_in(expression))
        if compared and not sized and not any(name.startswith("dtype(") for name in compared):
            pinned[compared[0]] = self.random.choice(("nonsense", ""))
        for group in counted:
            if group in self.test.get("rank", {}):
                groups[group] = self.random.choice(GROUPS)

    def _attempt(self, letters, groups, attributes, large: bool, loose: bool) -> Point | None:
        values, sizes = {}, Sizes()
        for letter in self.symbols["sizes"]:
            if letter in self.symbols["element_sizes"]:
                continue
            drawn = self._draw(self.letter_values(letter)) if loose else None
            base = self.base_letter(letter, large)
            values[letter] = letters.get(letter, base if drawn is None else drawn)
        sizes.groups = self._draw_groups(groups, loose)
        given = dict(attributes)
        for name in self.symbols["attributes"]:
            if name not in given and (not self.inputs[name]["has_default"] or loose):
                given[name] = self._draw(self.attribute_values(self.inputs[name]), always=True)
            value = given.get(name, self.inputs[name]["default"])
            if value is None:
                return None
            values[name] = value
        for name in self.texts:
            sizes.texts[name] = self._draw_text(name, given, loose)
        for name, param in self.inputs.items():  # a number or text that must be given
            free = name not in given and param["kind"] not in ("Tensor", "ScalarType")
            if free and not param["has_default"]:
                given[name] = self.attribute_values(param)[0]
        if not _resolve(values, sizes):
            return None
        given.update((name, values[name]) for name in self.symbols["attributes"] if name in given)
        given = self._resolve_others(given, sizes)
        sizes.elements = self._draw_elements(sizes)
        return Point(sizes, given)

    def _resolve_others(self, given: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        integers = {name for name in given if self.inputs[name]["kind"] == "int"}
        return {
            name: evaluate(value, sizes)
            if name in integers and isinstance(value, (str, list)) and not self.inputs[name]["list"]
            else value
            for name, value in given.items()
        }

    def _draw(self, values: list, always: bool = False) -> Any:
        """One of the values, small ones only; half of the time None."""
        small = [value for value in values if not isinstance(value, int) or -9 <= value <= 9]
        return self.random.choice(small or values) if always or self.random.random() < 0.5 else None

    def _draw_text(self, name: str, given: dict[str, Any], loose: bool) -> str | None:
        """A text that is compared: given, drawn or the default; or the name of a dtype."""
        if name.startswith("dtype("):
            return self.dtype_of(name[len("dtype(") : -1])
        param = self.inputs[name]
        if name not in given and (loose or not param["has_default"]):
            given[name] = self.random.choice(self.attribute_values(param))
        return given.get(name, param["default"])

    def _draw_groups(self, given: Mapping[str, Shape], loose: bool) -> dict[str, Shape]:
        found = {}
        for group in self.symbols["groups"]:
            if group not in self.symbols["element_groups"]:
                shapes = self.group_values(group) if loose else []
                drawn = self._draw([s for s in shapes if len(s) < 5]) if shapes else None
                found[group] = self.base_group(group) if drawn is None else drawn
        for join in self.symbols["joins"]:
            if loose and not any(group in given for group in join):
                found.update(self.random.choice(self.join_values(join)))
        return {**found, **given}

    def _draw_elements(self, sizes: Sizes) -> dict[str, list[Sizes]]:
        elements = {}
        for length in self._lengths():
            elements[length] = [
                Sizes(
                    dict.fromkeys(self.symbols["element_sizes"], (3, 1, 5)[left % 3]),
                    dict.fromkeys(self.symbols["element_groups"], GROUPS[4 - left % 5]),
                )
                for left in reversed(range(max(sizes.values.get(length, 0), 0)))
            ]
        return elements

    def _holds(self, point: Point, breaks: int | None) -> bool:
        try:
            for at, condition in enumerate(self.metadata["conditions"]):
                if bool(evaluate(condition["expression"], point.sizes)) == (at == breaks):
                    return False
            for join in self.symbols["joins"]:
                broadcast(*(point.sizes.groups[name] for name in join))
            self._shapes(point.sizes)
        except Misfit:
            return False
        return True

    def _shapes(self, sizes: Sizes) -> None:
        tensors = [param for param in self.inputs.values() if param["kind"] == "Tensor"]
        for param in tensors + self.metadata["results"]:
            length = param["shape"]["length"]
            for at in range(len(sizes.elements[length])) if length else (-1,):
                shape_of(param["shape"], sizes.of_element(length, at) if length else sizes)


def _parts(full: Shape) -> Iterator[Shape]:
    """Shapes that broadcast to full, full itself first."""
    ones = tuple(1 for _ in full)
    yield from dict.fromkeys(
        (full, full[-1:], (), ones, full[:1] + ones[1:], ones[:-1] + full[-1:])
    )


def _resolve(values: dict[str, Any], sizes: Sizes) -> bool:
    """Replaces expressions by their values, those of known letters first. False when one has none."""
    for _ in range(len(values) + 1):
        sizes.values = {name: value for name, value in values.items() if isinstance(value, int)}
        waiting = [name for name in values if name not in sizes.values]
        if not waiting:
            return True
        for name in waiting:
            if all(letter in sizes.values for letter in letters_in(values[name])):
                try:
                    values[name] = evaluate(values[name], sizes)
                except Misfit:
                    return False
    return False
