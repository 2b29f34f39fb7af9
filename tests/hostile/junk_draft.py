# SPDX-License-Identifier: Apache-2.0
"""A call while it is drawn: a good one from the schema, junk put into its places, and what each value stands for.

Junk registers itself here: `@junk("float")` makes a value for every float argument of every operator.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from anyop import testing
from anyop.cases.dtype_choices import DtypeChoice, choices_here
from anyop.cases.good_cases import Case
from anyop.cases.placed import OUTPUT_FILL, Placed, place_values
from anyop.cases.values import build, place_outputs

NOTHING = object()  # what a value stands for that no call may accept
REMOVED = object()


class Unfit(Exception):
    """Raised where junk cannot be made for a place."""


class Place(NamedTuple):
    """Where junk stands: an argument, a result given as out=, or the call as a whole."""

    name: str
    kind: str  # "Tensor", "int", ... as in the schema; "result"; "call"
    param: dict[str, Any]


Maker = Callable[["Draft", Place, Any], Any]  # the junk in place of a good value
MAKERS: dict[str, dict[str, Maker]] = {}  # by kind, by label


def junk(*kinds: str, label: str = "") -> Callable[[Maker], Maker]:
    """Registers a maker for the kinds of places that it fits; "any" is every argument and result."""

    def add(maker: Maker) -> Maker:
        for kind in kinds:
            known = MAKERS.setdefault(kind, {})
            name = label or maker.__name__
            assert name not in known, (kind, name)
            known[name] = maker
        return maker

    return add


def junk_values(*kinds: str, **values: Any) -> None:
    """Registers values that are the same in every call."""
    for label, value in values.items():
        junk(*kinds, label=label)(lambda draft, place, good, value=value: value)


def makers_of(kind: str) -> dict[str, Maker]:
    """All junk for a kind of place."""
    more = {} if kind == "call" else MAKERS["any"]
    if kind == "result":
        more = {**more, **MAKERS["Tensor"]}
    return {**more, **MAKERS.get(kind, {})}


class Cell(NamedTuple):
    """One thing to try; all else of its call is drawn."""

    subject: testing.Subject
    place: Place
    label: str


def places_of(subject: testing.Subject) -> Iterator[Place]:
    """All places of an operator, from its metadata."""
    for param in subject.inputs:
        yield Place(param["name"], param["kind"], param)
    for param in subject.results:
        yield Place(param["name"], "result", param)
    yield Place("(call)", "call", {})


def cells_of(subjects: list[testing.Subject]) -> list[Cell]:
    """All single junk of all places."""
    return [
        Cell(subject, place, label)
        for subject in subjects
        for place in places_of(subject)
        for label in makers_of(place.kind)
    ]


class Bridge:
    """Tensors of one framework over NumPy memory; this one is NumPy itself."""

    name = "numpy"
    writes = True

    def tensor(self, array: np.ndarray) -> Any:
        """The array as a tensor, in its memory where the framework can."""
        return array

    def array(self, value: Any) -> np.ndarray | None:
        """The values of a plain tensor, copied; None where it has none to see."""
        if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
            return None
        if value.nbytes > 1 << 28:  # by strides of 0: nobody has so much memory
            return None
        return np.array(value, order="C", subok=False)

    def owns(self, value: Any) -> bool:
        """Whether a result is one of the framework's own."""
        return type(value) is np.ndarray

    def has_dtype(self, name: str) -> bool:
        """Whether there are tensors of this dtype."""
        return True

    def around(self) -> contextlib.AbstractContextManager:
        """Around everything."""
        return contextlib.nullcontext()

    def contexts(self, draft: Draft) -> list[contextlib.AbstractContextManager]:
        """States of the framework under which the call is made; mostly none."""
        return []

    def entry(self, draft: Draft) -> Callable[..., Any]:
        """The function that is called."""
        return draft.subject.function

    def settle(self, draft: Draft) -> str | None:
        """Behind a call: what it left changed in the framework, which is put back."""
        return None

    def reads(self, draft: Draft, param: dict[str, Any], value: Any) -> Any:
        """What the framework's dispatcher makes of an odd value before any operator sees it."""
        return NOTHING

    def swallows(self, draft: Draft) -> bool:
        """Whether the framework's dispatcher forgets an argument's own exception."""
        return False

    def is_its_own(self, draft: Draft, error: BaseException) -> bool:
        """Whether an error is the framework's own, as the documents say."""
        return False


class Draft:
    """The call of one cell."""

    def __init__(self, bridge: Bridge, cell: Cell, dice: random.Random) -> None:
        self.bridge, self.subject, self.dice = bridge, cell.subject, dice
        self.raised: list[BaseException] = []  # by hostile objects, to arrive as they are
        self.meanings: list[tuple[Any, Any]] = []  # (value, what it stands for)
        self.kept: list[Any] = []  # as long as the call
        self.contexts: list[contextlib.AbstractContextManager] = []
        self.run: Callable[[Callable], Any] | None = None  # instead of a plain call
        self.notes: list[str] = [f"{cell.subject.name} {cell.place.name}: {cell.label}"]
        self.may_change = False  # junk writes its own memory
        self.may_recurse = self.busy = self.in_threads = False
        self.recursions = 0
        self.terms = 0.0  # the largest that may cancel in a result
        self.is_fake = False  # results have no values to compare
        self.by_ops = self.torchs_own = self.is_dead = self.is_unread = False
        self.way = ""
        self.case = self._case()
        built = build(self.subject, self.case)
        self.placed: list[Placed] = [p for group in built.placed.values() for p in group]
        self.outputs: dict[str, Placed] = {}
        self.given: list[Placed] = []  # results that are junk
        self.kind = ""  # of the place that is filled
        self.arrays = dict(built.arguments)
        self.arguments = {name: self.of(value) for name, value in built.arguments.items()}
        self.positional: list[Any] = []
        if (bridge.writes and dice.random() < 0.25) or cell.place.kind == "result":
            self._give_outputs()
        self.put(cell.place, cell.label)
        if dice.random() < 0.2:  # a second one
            place = dice.choice(list(places_of(self.subject)))
            with contextlib.suppress(Unfit):
                self.put(place, dice.choice(list(makers_of(place.kind))))
        if dice.random() < 0.3:
            self._by_position()
        self.contexts = [] if self.in_threads else self.contexts + bridge.contexts(self)

    def _case(self) -> Case:
        fitting = _choices(self.subject, self.bridge)
        choice = fitting[0] if self.dice.random() < 0.5 else self.dice.choice(fitting)
        good = testing.Good(self.subject, choice)
        point = None
        if self.dice.random() < 0.3:
            good.drawer.random = random.Random(self.dice.random())
            point = good.drawer.solve(wild=True)
        return good.case_at(point) if point else good.case

    def _give_outputs(self) -> None:
        self.outputs = place_outputs(self.subject, self.case)
        for name, placed in self.outputs.items():
            self.arguments[name] = self.bridge.tensor(placed.array)

    def _by_position(self) -> None:
        for param in self.subject.inputs:
            if param["keyword_only"] or param["name"] not in self.arguments:
                break
            self.positional.append(self.arguments.pop(param["name"]))

    def put(self, place: Place, label: str) -> None:
        """Puts one junk value into its place; Unfit where it cannot be."""
        self.kind = place.kind
        try:
            made = makers_of(place.kind)[label](self, place, self._good(place))
        except Exception as error:
            raise Unfit from error
        if len(self.notes) == 1 and self.notes[0].endswith(f"{place.name}: {label}"):
            pass
        else:
            self.notes.append(f"and {place.name}: {label}")
        if place.kind == "call":
            return
        if made is REMOVED:
            self.arguments.pop(place.name, None)
        elif place.param.get("list") and isinstance(self.arguments.get(place.name), list):
            items = self.arguments[place.name]
            if items and self.dice.random() < 0.7:
                items[self.dice.randrange(len(items))] = made
            else:
                self.arguments[place.name] = made
        else:
            self.arguments[place.name] = made

    def _good(self, place: Place) -> Any:
        """The NumPy array, or the value, that a good call has there."""
        if place.kind == "call":
            return None
        if place.kind == "result":
            return place_outputs(self.subject, self.case)[place.name].array
        found = self.arrays.get(place.name, place.param.get("default"))
        if place.param.get("list") and place.kind == "Tensor":
            found = next((item for item in found or [] if item is not None), None)
        if place.kind == "Tensor" and not isinstance(found, np.ndarray):
            raise Unfit
        return found

    # ---- for makers ----

    def of(self, value: Any) -> Any:
        """An array as the framework's tensor; lists element by element; all else as it is."""
        if isinstance(value, list):
            return [self.of(item) for item in value]
        return self.bridge.tensor(value) if isinstance(value, np.ndarray) else value

    def means(self, value: Any, plain: Any) -> Any:
        """Says what a value stands for where it is accepted; returns it."""
        self.meanings.append((value, plain))
        return value

    def note(self, text: str) -> None:
        """For the report."""
        self.notes.append(text)

    def fresh(self, array: np.ndarray) -> np.ndarray:
        """A copy in guarded memory that is watched."""
        placed = place_values(np.array(array), "offset")
        (self.given if self.kind == "result" else self.placed).append(placed)
        return placed.array

    def raising(self, error: BaseException) -> BaseException:
        """Notes an error that is about to be raised."""
        self.raised.append(error)
        return error

    def meaning(self, kind: str, value: Any) -> Any:
        """What a value stands for: an array, a number, a text; NOTHING where no call may accept it."""
        try:
            return self._meaning(kind, value)
        except Exception:  # of an odd object
            return NOTHING

    def _meaning(self, kind: str, value: Any) -> Any:
        for known, plain in self.meanings:
            if known is value:
                return plain
        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            return [self._meaning(kind, item) for item in value]
        if kind == "Tensor":
            found = self.bridge.array(value)
            if found is None and not isinstance(value, np.ndarray):
                found = np.array(np.asarray(memoryview(value)))  # TypeError: it is no memory
            return NOTHING if found is None else found
        if kind == "int" and (self.bridge.owns(value) or _is_paddles_enum(value)):
            return operator.index(value)  # Paddle's tensor of 0.5 says 0
        convert = {"int": int, "float": float, "bool": bool, "str": str}.get(kind)
        if kind == "float" and not isinstance(value, (str, bytes, bytearray, memoryview)):
            return float(value)
        numbers = (int, float, np.generic, np.ndarray)
        if kind == "ScalarType":
            return _dtype_name(value)
        if kind == "str" and not isinstance(value, str):
            return NOTHING
        if kind != "str" and not isinstance(value, numbers):
            return NOTHING
        try:
            return convert(value)
        except Exception:
            return NOTHING


def _choices(subject: testing.Subject, bridge: Bridge) -> list[DtypeChoice]:
    kept = bridge.__dict__.setdefault("choices", {})
    if subject.name not in kept:
        kept[subject.name] = [
            choice
            for choice in choices_here(subject.metadata)
            if all(bridge.has_dtype(name) for name in choice.names.values() if name)
        ]
    return kept[subject.name]


def _is_paddles_enum(value: Any) -> bool:
    """Paddle's dtypes are whole numbers, by __index__."""
    return type(value).__module__.startswith("paddle") and hasattr(type(value), "__index__")


def _dtype_name(value: Any) -> Any:
    known = {int: "int64", float: "float64", bool: "bool", complex: "complex128"}
    if isinstance(value, type) and value in known:
        return known[value]
    text = value if isinstance(value, str) else getattr(value, "name", None)
    if hasattr(value, "untyped_storage"):
        return NOTHING  # a torch.Tensor, whose text reads memory that may be gone
    if not isinstance(text, str):
        text = getattr(value, "__name__", None) or str(value)
    text = str(text).rpartition(".")[2].lower()
    return text if text in testing.dtype_choices.__globals__["NAMES"] else NOTHING


__all__ = [
    "NOTHING",
    "OUTPUT_FILL",
    "REMOVED",
    "Bridge",
    "Cell",
    "Draft",
    "Place",
    "Unfit",
    "cells_of",
    "junk",
]
