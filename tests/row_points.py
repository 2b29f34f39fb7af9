# SPDX-License-Identifier: Apache-2.0
"""Cases of any operator with so many rows of so many columns, and which tensors divide into rows: by its schema."""

from __future__ import annotations

from typing import Any

from anyop.testing.draw import Drawer, Point
from anyop.testing.dtype_choices import DtypeChoice
from anyop.testing.good_cases import Case, fits
from anyop.testing.placed import kinds_of, layout_of
from anyop.testing.sizes import product, shape_of
from anyop.testing.subject import Subject

# What integers of the call are that sizes depend on; those of the schema's [test] are for small tensors.
_GIVEN = {"k": ["ceildiv", "D", 2], "D": ["+", "K", 1], "V": 64, "group": 128, "dim": -1}


def columns_of(symbols: dict[str, Any]) -> str | None:
    """The letter of a row's length; None where the last size of the group is that."""
    letters = symbols["sizes"]
    return "D" if "D" in letters else letters[-1] if letters else None


def row_point(subject: Subject, columns: int, rows: int, turned: bool = False) -> Point | None:
    """Sizes with these rows; turned: dim=0, for operators that take a dim. None where conditions forbid them."""
    drawer = Drawer(subject.metadata)
    symbols, letter = drawer.symbols, columns_of(drawer.symbols)
    letters = {letter: columns} if letter else {}
    shape = (rows,) if letter else (columns, rows) if turned else (rows, columns)
    groups = dict.fromkeys(symbols["groups"], shape)
    if not groups:
        letters[symbols["sizes"][0]] = rows
    given = {name: _GIVEN[name] for name in symbols["attributes"] if name in _GIVEN}
    if turned:
        if "dim" not in given:
            return None
        given["dim"] = 0
    return drawer.solve(letters, groups, given)


def row_case(
    subject: Subject, choice: DtypeChoice, columns: int, rows: int, layout: str = "plain", **more
) -> Case | None:
    """A call with these rows; every tensor that may lie so has this layout."""
    point = row_point(subject, columns, rows, more.pop("turned", False))
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
    return case if fits(subject, case) else None


def largest(subject: Subject, point: Point) -> int:
    """Elements of the largest tensor."""
    return max(
        product(shape_of(p["shape"], point.sizes)) for p in subject.tensors + subject.results
    )


def is_divided(subject: Subject, param: dict[str, Any]) -> bool:
    """Whether its first dimension is that of the rows: of the groups, or of the first letter where there are none."""
    groups, shape = subject.metadata["symbols"]["groups"], param["shape"]
    if groups:
        return not shape["before"] and shape["group"] is not None
    return shape["before"][:1] == subject.metadata["symbols"]["sizes"][:1]
