# SPDX-License-Identifier: Apache-2.0
"""Good inputs of one operator: which sizes, attributes, absent arguments and layouts the standard tests try."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anyop.cases.draw import Drawer, Point
from anyop.cases.dtype_choices import DtypeChoice, allowed, dtype_choices
from anyop.cases.placed import kinds_of, layout_of
from anyop.cases.sizes import Shape, broadcast, product, shape_of
from anyop.cases.subject import Subject

RANDOM_POINTS = 12
LARGE_ELEMENTS = 1 << 18  # of the largest tensor: enough for several threads
LARGE_WORK = 1 << 23  # of the product of all sizes, for operators that loop over all of them
MANY_CASES = 10_000  # of one operator: above, combinations of different dtypes get one case in four


@dataclass(frozen=True)
class Case:
    """One call. Arrays are made from it by anyop.cases.values.build."""

    label: str
    what: str  # of CASE_CLASSES
    choice: DtypeChoice
    point: Point
    absent: frozenset[str] = frozenset()
    layouts: Mapping[str, str] = field(
        default_factory=dict
    )  # of arguments and results; others plain
    expanded: Mapping[str, Shape] = field(default_factory=dict)  # of arguments expand(...)
    special: bool = False  # with infinities and NaN among the values

    @property
    def names(self) -> dict[str, str | None]:
        """The dtypes of what is given: None for absent tensors."""
        return {n: None if n in self.absent else dtype for n, dtype in self.choice.names.items()}


CASE_CLASSES = (
    "base", "one element", "size", "empty", "group", "broadcast", "expand", "attribute", "absent", "view", "random",
    "large", "list", "special",
)  # fmt: skip


def good_cases(subject: Subject, choice: DtypeChoice) -> list[Case]:
    """All cases of one combination of dtypes."""
    cases = {case.label: case for case in _Maker(subject, choice).make()}
    return list(cases.values())


def standard_cases(subject: Subject, choice: DtypeChoice) -> list[Case]:
    """The same, thinned where very many combinations of dtypes are allowed: each of them gets another part.

    The first case of every class stays, and so do all cases of combinations of one dtype.
    """
    cases, choices = good_cases(subject, choice), dtype_choices(subject.metadata)
    if choice.is_uniform or len(cases) * len(choices) <= MANY_CASES:
        return cases
    part, seen, kept = choices.index(choice) % 4, set(), []
    for at, case in enumerate(cases):
        if at % 4 == part or case.what not in seen:
            kept.append(case)
        seen.add(case.what)
    return kept


def has_special(subject: Subject, choice: DtypeChoice) -> bool:
    """Whether infinities and NaN are tried: not where the caller asks for integers, or [test] says finite."""
    if subject.metadata.get("finite"):
        return False
    asked = [choice.names.get(param["name"]) for param in subject.attributes]
    floating = [name for name in choice.names.values() if name and "float" in name]
    return bool(floating) and all(name is None or "float" in name for name in asked)


def fits(subject: Subject, case: Case) -> bool:
    """Whether the dtypes of what is given are right: one may follow that of an absent tensor."""
    given = (param for param in subject.tensors if param["name"] not in case.absent)
    return all(case.names[param["name"]] in allowed(param, case.names) for param in given)


class _Maker:
    def __init__(self, subject: Subject, choice: DtypeChoice) -> None:
        self.subject = subject
        self.choice = choice
        self.metadata = subject.metadata
        self.drawer = Drawer(subject.metadata, choice.names)
        self.symbols = subject.metadata["symbols"]
        self.required = frozenset(
            param["name"] for param in subject.tensors if not param["optional"]
        )

    def make(self) -> Iterator[Case]:
        base = self.drawer.solve()
        if base is None:
            raise LookupError(f"{self.subject.name}: no sizes satisfy its conditions; see [test]")
        yield self._case("base", "base", base)
        yield from self._one_element()
        yield from self._sizes()
        yield from self._groups()
        yield from self._joins()
        yield from self._expanded(base)
        yield from self._attributes(base)
        yield from self._absent(base)
        yield from self._plain()
        yield from self._lists()
        yield from self._views(base, "")
        large = self.drawer.solve(large=True)
        if large:
            yield from self._views(large, " of larger sizes")
        yield from self._random()
        yield from self._large()
        yield from self._special(base)

    def _case(self, label: str, what: str, point: Point | None, **more: Any) -> Case:
        assert point is not None, label
        return Case(label, what, self.choice, point, **more)

    def _one_element(self) -> Iterator[Case]:
        groups = self.symbols["groups"]
        point = self.drawer.solve(
            dict.fromkeys(self.symbols["sizes"], 1), dict.fromkeys(groups, ())
        )
        ones = point or self.drawer.solve(
            dict.fromkeys(self.symbols["sizes"], 1), dict.fromkeys(groups, (1,))
        )
        if ones:
            yield self._case("all sizes 1", "one element", ones)

    def _sizes(self) -> Iterator[Case]:
        for letter in self.symbols["sizes"]:
            for value in self.drawer.letter_values(letter):
                pinned = {letter: value}
                point = self.drawer.solve(pinned)
                if point:
                    what = "empty" if point.sizes.values.get(letter) == 0 else "size"
                    yield self._case(f"{letter}={value}", what, point)

    def _groups(self) -> Iterator[Case]:
        joined = set(itertools.chain(*self.symbols["joins"]))
        for group in self.symbols["groups"]:
            if group in joined or group in self.symbols["element_groups"]:
                continue
            for shape in self.drawer.group_values(group):
                point = self.drawer.solve(groups={group: shape})
                if point:
                    what = "empty" if 0 in shape else "group"
                    yield self._case(f"*{group.strip('_')}={shape}", what, point)

    def _joins(self) -> Iterator[Case]:
        for join in self.symbols["joins"]:
            for groups in self.drawer.join_values(join):
                point = self.drawer.solve(groups=groups)
                if point:
                    empty = 0 in broadcast(*groups.values())
                    label = " ".join(f"*{name}={shape}" for name, shape in groups.items())
                    yield self._case(label, "empty" if empty else "broadcast", point)

    def _expanded(self, base: Point) -> Iterator[Case]:
        for param in self.subject.tensors:
            if not param["shape"]["expand"]:
                continue
            full = shape_of(param["shape"], base.sizes)
            ways = [full[cut:] for cut in range(1, len(full) + 1)]
            ways += [(*full[:at], 1, *full[at + 1 :]) for at in range(len(full))]
            ways.append((1,) * len(full))
            for way in dict.fromkeys(ways):
                yield self._case(
                    f"{param['name']} expanded from {way}",
                    "expand",
                    base,
                    expanded={param["name"]: way},
                )

    def _attributes(self, base: Point) -> Iterator[Case]:
        for param in self.subject.attributes:
            if param["name"] in self.choice.names:
                continue
            for value in self.drawer.attribute_values(param):
                point = self.drawer.solve(attributes={param["name"]: value})
                if point:
                    label = f"{param['name']}={point.attributes[param['name']]!r}"
                    yield self._case(label, "attribute", point)
                yield from self._attribute_with_groups(param, value)
        values = [
            (param["name"], value)
            for param in self.subject.attributes
            if param["name"] not in self.choice.names and param["kind"] in ("bool", "str")
            for value in self.drawer.attribute_values(param)
        ]
        for (a, x), (b, y) in itertools.combinations(values, 2):
            point = self.drawer.solve(attributes={a: x, b: y}) if a != b else None
            if point:
                yield self._case(f"{a}={x!r} {b}={y!r}", "attribute", point)

    def _attribute_with_groups(self, param: Mapping[str, Any], value: Any) -> Iterator[Case]:
        """An integer that conditions name, such as a dimension, with every shape."""
        if param["name"] not in self.symbols["attributes"]:
            return
        for group in self.symbols["groups"]:
            for shape in self.drawer.group_values(group):
                point = self.drawer.solve(groups={group: shape}, attributes={param["name"]: value})
                if point and len(shape) < 5 and product(shape) < 70:
                    label = f"{param['name']}={point.attributes[param['name']]} *{group}={shape}"
                    yield self._case(label, "attribute", point)

    def _absent(self, base: Point) -> Iterator[Case]:
        optional = [param["name"] for param in self.subject.tensors if param["optional"]]
        subsets = (
            itertools.chain(
                *(itertools.combinations(optional, n) for n in range(1, len(optional) + 1))
            )
            if len(optional) <= 3
            else [(name,) for name in optional] + [tuple(optional)]
        )
        for names in subsets:
            label = f"without {', '.join(names)}"
            case = self._case(label, "absent", base, absent=frozenset(names))
            if fits(self.subject, case):
                yield case

    def _plain(self) -> Iterator[Case]:
        """What is left out is left out together: tensors that are optional, attributes with a default."""
        absent = frozenset(param["name"] for param in self.subject.tensors if param["optional"])
        defaults = {
            param["name"]: param["default"] for param in self.subject.attributes
            if param["has_default"] and param["name"] not in self.choice.names
        }  # fmt: skip
        # Numbers that must be distinct may be more than there are of such sizes.
        counts = () if (self.metadata["test"] or {}).get("distinct") else (2, 3)
        sizes = {f", sizes {n}": dict.fromkeys(self.symbols["sizes"], n) for n in counts}
        for which, letters in {"": {}, **sizes}.items() if absent and defaults else ():
            point = self.drawer.solve(letters, attributes=defaults)
            case = point and self._case(f"all left out{which}", "plain", point, absent=absent)
            if case and fits(self.subject, case):
                yield case

    def _lists(self) -> Iterator[Case]:
        lengths = {param["shape"]["length"] for param in self.subject.tensors if param["list"]}
        for length in sorted(lengths):
            for count in (0, 1, 2, 13):  # 13: overlaps are looked for in another way
                point = self.drawer.solve({length: count})
                if point:
                    yield self._case(f"{length}={count} tensors", "list", point)
        yield from self._elements("empty", (0,))
        yield from self._elements("list", (4097,))

    def _elements(self, what: str, shape: Shape) -> Iterator[Case]:
        """Three tensors in each list, one of this shape."""
        groups = self.symbols["element_groups"]
        for length in sorted({param["shape"]["length"] or "" for param in self.subject.tensors}):
            point = self.drawer.solve({length: 3}) if length and groups else None
            if point:
                point.sizes.elements[length][1].groups.update(dict.fromkeys(groups, shape))
                yield self._case(f"a tensor of {length} of {shape}", what, point)

    def _views(self, point: Point, which: str) -> Iterator[Case]:
        tensors = self.subject.tensors + self.metadata["results"]
        everywhere = {}
        for param in tensors:
            name = param["name"]
            written = param in self.metadata["results"] or param["mutated"]
            ndim = 2
            if not param["shape"]["length"]:
                ndim = len(shape_of(param["shape"], point.sizes))
            for kind in kinds_of(layout_of(param), ndim, written):
                if kind != "plain":
                    label = f"{name} {kind}{which}"
                    layouts = dict.fromkeys(self._same_order(param), kind)
                    yield self._case(label, "view", point, layouts=layouts)
                    everywhere.setdefault(kind, {})[name] = kind
        for kind, layouts in everywhere.items():
            if len(layouts) > 1:
                yield self._case(f"all {kind}{which}", "view", point, layouts=layouts)

    def _same_order(self, param: Mapping[str, Any]) -> list[str]:
        """The tensor, and with a dense list those that must lie as it does."""
        length = param["shape"]["length"]
        if not length or param["layout"] != "dense":
            return [param["name"]]
        lists = [p for p in self.subject.tensors if p["layout"] == "dense"]
        return [p["name"] for p in lists if p["shape"]["length"] == length]

    def _random(self) -> Iterator[Case]:
        for number in range(RANDOM_POINTS):
            point = self.drawer.solve(wild=True)
            if point:
                yield self._case(f"random {number}", "random", point)

    def _large(self) -> Iterator[Case]:
        """Sizes for several threads, one case for each way to be large."""
        for group in self.symbols["groups"]:
            if group in self.symbols["element_groups"]:
                continue
            for shape in ((1031, 2), (517,), (5, 3, 100)):
                point = self.drawer.solve(groups={group: shape}, large=True)
                if point and self._largest(point) > 2 * LARGE_ELEMENTS:
                    point = self.drawer.solve(groups={group: shape}) or point
                if point := self._grown(point):
                    yield self._case(f"large *{group.strip('_')}={shape}", "large", point)
                    break
        yield from self._elements("large", (LARGE_ELEMENTS + 1,))
        if not self.symbols["groups"]:
            point = self._grown(self.drawer.solve(large=True))
            if point:
                yield self._case("large", "large", point)

    def _grown(self, point: Point | None) -> Point | None:
        """The point with its letters doubled, one after the other, until a tensor is large."""
        free = [
            letter
            for letter in self.symbols["sizes"]
            if letter not in self.drawer.test.get("sizes", {})
            and letter not in self.symbols["element_sizes"]
        ]
        while point and free and self._largest(point) < LARGE_ELEMENTS:
            values = {letter: point.sizes.values[letter] * 3 // 2 for letter in free}
            grown = self.drawer.solve(values, point.sizes.groups, large=True)
            sizes = grown.sizes if grown else point.sizes
            work = product((*sizes.values.values(), *map(product, sizes.groups.values())))
            if not grown or work > LARGE_WORK:
                return point
            point = grown
        if not free and point and self.symbols["groups"]:
            groups = dict(point.sizes.groups)
            name = max(groups, key=lambda group: product(groups[group]))
            if last := groups[name][-1:]:  # as long as it must be, and odd
                least = last[0] * LARGE_ELEMENTS // max(self._largest(point), 1) + 1
                groups[name] = (*groups[name][:-1], min(least | 1, 257))
            point = self.drawer.solve(groups=groups, large=True) or point
        return point

    def _largest(self, point: Point) -> int:
        tensors = [
            p for p in self.subject.tensors + self.metadata["results"] if not p["shape"]["length"]
        ]
        return max(
            (product(shape_of(p["shape"], point.sizes)) for p in tensors), default=LARGE_ELEMENTS
        )

    def _special(self, base: Point) -> Iterator[Case]:
        if has_special(self.subject, self.choice):
            case = self._case("infinities and NaN", "special", base)
            yield replace(case, special=True)
