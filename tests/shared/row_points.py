# SPDX-License-Identifier: Apache-2.0
"""Cases of any operator with so many rows of so many columns, and which tensors divide into rows: by its schema."""

from __future__ import annotations

import itertools
from typing import Any

from anyop.cases.draw import Drawer, Point
from anyop.cases.dtype_choices import DtypeChoice
from anyop.cases.good_cases import Case, fits
from anyop.cases.placed import kinds_of, layout_of
from anyop.cases.sizes import Sizes, evaluate, product, shape_of
from anyop.cases.subject import Subject
from anyop.cases.values import shapes_of

# What integers of the call are that sizes depend on; those of the schema's [test] are for small tensors.
# One group of all channels: of a few numbers of one the deviation may be next to nothing.
_GIVEN = {
    "k": ["ceildiv", "D", 2],
    "D": ["+", "K", 1],
    "V": 64,
    "group": 128,
    "groups": 1,
    "dim": -1,
}


def columns_of(symbols: dict[str, Any]) -> str | None:
    """The letter of a row's length; None where the last size of the group is that."""
    letters = symbols["sizes"]
    return "D" if "D" in letters else letters[-1] if letters else None


def is_counted(subject: Subject) -> bool:
    """Whether its columns number places that are all different, as slots of a cache: their range has no more."""
    distinct = (subject.metadata["test"] or {}).get("distinct", ())
    letter = columns_of(subject.metadata["symbols"])
    return any(
        letter in letters_of(p["shape"]["before"]) for p in subject.tensors if p["name"] in distinct
    )


def row_point(
    subject: Subject, columns: int, rows: int, turned: bool = False, **others: int
) -> Point | None:
    """Sizes with these rows; turned: dim=0, for operators that take a dim; others: integers of the call.

    None where conditions forbid them, or tensors are those of lists, each of sizes of its own.
    """
    if is_counted(subject) or subject.metadata["symbols"]["element_groups"]:
        return None
    drawer = Drawer(subject.metadata)
    symbols, letter = drawer.symbols, columns_of(drawer.symbols)
    letters = {letter: columns} if letter else {}
    shape = (rows,) if letter else (columns, rows) if turned else (rows, columns)
    groups = dict.fromkeys(symbols["groups"], shape)
    if not groups:
        letters[symbols["sizes"][0]] = rows
    given = {
        name: value for name, value in _GIVEN.items() if name in symbols["attributes"]
    } | others
    if turned:
        if "dim" not in given:
            return None
        given["dim"] = 0
    return drawer.solve(letters, groups, given)


def row_case(
    subject: Subject, choice: DtypeChoice, columns: int, rows: int, layout: str = "plain", **more
) -> Case | None:
    """A call with these rows; every tensor that may lie so has this layout. `more` is row_point's or Case's."""
    ours = {name: more.pop(name) for name in ("turned", *_GIVEN) if name in more}
    point = row_point(subject, columns, rows, **ours)
    if point is None:
        return None
    layouts = {}
    for param in subject.tensors + subject.results:
        written = param in subject.results or param["mutated"]
        ndim = len(shape_of(param["shape"], point.sizes))
        if layout in kinds_of(layout_of(param), ndim, written) and layout != "plain":
            layouts[param["name"]] = layout
    label = f"{rows} rows of {columns}, {layout}"
    case = Case(label, "size", choice, point, layouts=layouts, **more)
    return case if fits(subject, case) and has_room(subject, case) else None


def has_room(subject: Subject, case: Case) -> bool:
    """Whether the range of numbers that are all different has as many as their tensor."""
    test = subject.metadata["test"] or {}
    for param in subject.tensors:
        if param["name"] in test.get("distinct", ()):
            low, high = (evaluate(b, case.point.sizes) for b in test["range"][param["name"]])
            if any(product(shape) > high - low for shape in shapes_of(param, case)):
                return False
    return True


def is_grouped(subject: Subject) -> bool:
    return "group" in subject.metadata["symbols"]["attributes"]


def grouped_cases(subject: Subject, choice: DtypeChoice) -> list[Case]:
    """Rows that share a warp, of columns in groups, whose scales the kernel finds."""
    absent = frozenset({"scale"})
    sizes = itertools.product((16, 64, 128, 256), (4, 8, 16, 32))
    cases = [row_case(subject, choice, D, 37, group=group, absent=absent) for D, group in sizes]
    return [case for case in cases if case]


def largest(subject: Subject, point: Point) -> int:
    """Elements of the largest tensor; of a list, of the largest in it."""

    def sizes_of(length: str | None) -> list[Sizes]:
        if not length:
            return [point.sizes]
        return [
            point.sizes.of_element(length, at) for at in range(len(point.sizes.elements[length]))
        ]

    shapes = [p["shape"] for p in subject.tensors + subject.results]
    return max(
        (product(shape_of(s, sizes)) for s in shapes for sizes in sizes_of(s["length"])), default=0
    )


def combinations(point: Point) -> int:
    """Of all sizes: the most that a reference, which knows no blocks, may go through."""
    return product(max(1, size) for size in point.sizes.values.values())


def is_divided(subject: Subject, param: dict[str, Any]) -> bool:
    """Whether its first dimension is that of the rows: of the groups, or of the first letter where there are none."""
    groups, shape = subject.metadata["symbols"]["groups"], param["shape"]
    if groups:
        return not shape["before"] and shape["group"] is not None
    return shape["before"][:1] == subject.metadata["symbols"]["sizes"][:1]


# What says where a row belongs, or is tried on all rows at once: results depend on the others.
_PLACES = {"offsets", "counts", "cu_seqlens_q", "slots", "batch_offset", "ids", "permutations"}


def is_of_any_length(subject: Subject) -> bool:
    """Whether its rows may have any length: no text decides on shapes, no kernel has a bound for them; no lists."""
    letter, symbols = columns_of(subject.metadata["symbols"]), subject.metadata["symbols"]
    kernels = [k for k in subject.metadata["kernels"] if k["backend"] == "cuda"]
    bounds = [kernel["when"] or "" for kernel in kernels]
    bound = any(f"{letter}<=" in when for when in bounds)
    lists = symbols["element_groups"]
    return not symbols["texts"] and not bound and not lists and not is_counted(subject)


def is_by_rows(subject: Subject) -> bool:
    """Whether a call for some of the rows gives some of the results, as of no list, no packed or written tensor.

    Nor where a tensor holds numbers of rows, nor where no tensor begins with rows, as a batch of images.
    """
    symbols, params = subject.metadata["symbols"], subject.tensors + subject.results
    letter = None if symbols["groups"] else symbols["sizes"][0]
    elsewhere = any(letter in letters_of(p["shape"]["before"][1:]) for p in params) and letter
    named = {p["name"] for p in subject.tensors}
    ranges = (subject.metadata["test"] or {}).get("range", {})
    numbered = letter in letters_of([bound for name, bound in ranges.items() if name in named])
    whole = any(p["list"] or p["mutated"] for p in subject.tensors) or named & _PLACES
    divided = any(is_divided(subject, p) for p in subject.tensors)
    return is_of_any_length(subject) and divided and not (elsewhere or numbered or whole)


def letters_of(expressions: Any) -> set[str]:
    """All texts in nested lists."""
    if isinstance(expressions, str):
        return {expressions}
    return set().union(*map(letters_of, expressions)) if isinstance(expressions, list) else set()
